package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oklog/ulid/v2"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Redis knows which flight has an id, but not whether a handler has begun. The node that popped the id knows both.
// A message asks the node, which answers on a channel that the message names.

// Stage says where a node has an id in flight.
type Stage string

// The stages of an id in flight, in their order.
const (
	Behind     Stage = "behind"  // waits behind other ids of its shard
	ForCall    Stage = "call"    // is next in its shard; the queue has as many calls as its concurrency
	ForPermit  Stage = "permit"  // is next in its shard; the cluster has as many calls as the limit of the queue
	ForProcess Stage = "process" // waits for a process of its handler
	ForSlot    Stage = "slot"    // waits because the node has as many calls as its concurrency
	ForRate    Stage = "rate"    // waits for the rate of its queue
	ForGroup   Stage = "group"   // waits because its group is at its limit
	Handled    Stage = "handler" // is with a handler
)

// Wait names the bound that makes lanes of a queue wait on a node. The lanes have a batch already.
type Wait struct {
	For Stage  `json:"for"`
	Of  string `json:"of"` // the bound, for people: 10/s, 5
}

// Whereabouts says where a node has an id in flight.
type Whereabouts struct {
	Stage Stage         // "" if the node does not have the id
	For   time.Duration // how long a handler has had it; 0 if none has
	// Cancelled means that the question ended the context of the handler.
	Cancelled bool
}

// Question is a message to an instance that asks where an id is, or asks to end its run.
type Question struct {
	Shard  lowkiq.Shard
	ID     string
	Answer string        // the channel for the answer
	Cancel *Cancellation // nil if the run shall go on
}

// Then says what happens to an id after a person has ended its run.
type Then string

// The values of Then.
const (
	ThenRetry  Then = "retry"  // the job is due now, which does not count as a retry
	ThenHold   Then = "hold"   // the id is held until it is released
	ThenBury   Then = "bury"   // the payloads go to the morgue
	ThenDelete Then = "delete" // the payloads are deleted
)

// Thens returns all values of Then.
func Thens() []Then { return []Then{ThenRetry, ThenHold, ThenBury, ThenDelete} }

// Cancellation says what happens to an id after its run is ended, who asks for it, and why.
type Cancellation struct {
	Then Then   `json:"then"`
	By   string `json:"by,omitempty"`
	Why  string `json:"why,omitempty"`
}

// questionMessage and answerMessage are the forms of a question and its answer.
type questionMessage struct {
	Queue  string        `json:"queue"`
	Shard  int           `json:"shard"`
	ID     string        `json:"id"`
	Bytes  []byte        `json:"id_bytes,omitempty"` // the bytes of an id that is not UTF-8 and has no text in JSON
	Answer string        `json:"answer"`             // the last part of the channel's name
	Cancel *Cancellation `json:"cancel,omitempty"`
}

type answerMessage struct {
	Stage     Stage `json:"stage"`
	For       int64 `json:"for_ms,omitempty"`
	Cancelled bool  `json:"cancelled,omitempty"`
}

const whereMail = "where "

// encodeQuestion returns the message for a question.
func encodeQuestion(s lowkiq.Shard, id, answer string, cancel *Cancellation) (string, error) {
	a := questionMessage{Queue: s.Queue, Shard: s.Index, ID: id, Answer: answer, Cancel: cancel}
	if !utf8.ValidString(id) {
		a.Bytes = []byte(id)
	}
	text, err := json.Marshal(a)
	return whereMail + string(text), err
}

// decodeQuestion reads a question. It returns nil for other messages.
func (c *Client) decodeQuestion(payload string) *Question {
	text, found := strings.CutPrefix(payload, whereMail)
	var a questionMessage
	if !found || json.Unmarshal([]byte(text), &a) != nil || a.Queue == "" || a.Answer == "" {
		return nil
	}
	if a.Bytes != nil {
		a.ID = string(a.Bytes)
	}
	return &Question{Shard: lowkiq.Shard{Queue: a.Queue, Index: a.Shard}, ID: a.ID, Answer: c.db.Keys.Answer(a.Answer), Cancel: a.Cancel}
}

// Whereabouts asks an instance where it has an id in flight. If it does not listen, or does not
// answer within patience, the answer is empty.
func (c *Client) Whereabouts(ctx context.Context, instance string, s *Shard, id string, patience time.Duration) (Whereabouts, error) {
	return c.askInstance(ctx, instance, s, id, nil, patience)
}

// Cancel asks an instance to end the handler call of an id, and returns where the id was. If the instance does not
// listen, or does not answer within patience, the answer is empty, and it is unknown whether the call was
// ended.
func (c *Client) Cancel(ctx context.Context, instance string, s *Shard, id string, why Cancellation, patience time.Duration) (Whereabouts, error) {
	return c.askInstance(ctx, instance, s, id, &why, patience)
}

func (c *Client) askInstance(ctx context.Context, instance string, s *Shard, id string, cancel *Cancellation, patience time.Duration) (Whereabouts, error) {
	name := ulid.Make().String()
	question, err := encodeQuestion(s.Shard, id, name, cancel)
	if err != nil {
		return Whereabouts{}, fmt.Errorf("ask %s: %w", instance, err)
	}
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	answers := c.db.Subscribe(ctx)
	defer answers.Close()
	if err := answers.Listen(ctx, c.db.Keys.Answer(name), patience); err != nil {
		return Whereabouts{}, c.withoutTimeout(ctx, instance, err)
	}
	if n, err := c.db.Publish(ctx, c.db.Keys.To(instance), question); n == 0 {
		return Whereabouts{}, c.withoutTimeout(ctx, instance, err)
	}
	for {
		msg, err := answers.Receive(ctx, patience)
		if err != nil {
			return Whereabouts{}, c.withoutTimeout(ctx, instance, err)
		}
		var a answerMessage
		if json.Unmarshal([]byte(msg.Payload), &a) == nil {
			return Whereabouts{a.Stage, time.Duration(a.For) * time.Millisecond, a.Cancelled}, nil
		}
	}
}

// withoutTimeout returns nil if the error is only that no answer came in time.
func (c *Client) withoutTimeout(ctx context.Context, instance string, err error) error {
	if err == nil || redisdb.TimedOut(err) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil
	}
	return c.db.Explain("ask "+instance, err)
}

// Answer answers a question.
func (c *Client) Answer(ctx context.Context, q *Question, w Whereabouts) error {
	text, err := json.Marshal(answerMessage{w.Stage, w.For.Milliseconds(), w.Cancelled})
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	_, err = c.db.Do(ctx, "answer", "PUBLISH", q.Answer, text)
	return err
}
