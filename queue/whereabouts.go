package queue

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
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Redis knows which flight has an id, and not whether a handler has begun. The node that popped it
// does, and is asked by a message; it answers on a channel that the asker has chosen.

// Stage is where a node has an id in flight.
type Stage string

// The stages of an id in flight, in their order.
const (
	Behind     Stage = "behind"  // behind others of its shard
	ForCall    Stage = "call"    // next in its shard; the queue is at its concurrency
	ForPermit  Stage = "permit"  // the same, and the cluster may be at the limit of the queue
	ForProcess Stage = "process" // all processes of its handler are busy
	ForSlot    Stage = "slot"    // the node is at its concurrency
	ForRate    Stage = "rate"    // as many of the queue as its limit allows were handed out of late
	ForGroup   Stage = "group"   // its group is at its limit
	Handled    Stage = "handler" // a handler has it
)

// Whereabouts is what a node knows of an id in flight.
type Whereabouts struct {
	Stage Stage         // "": it does not know the id
	For   time.Duration // how long a handler has had it, 0 while none has
	// Cancelled: that handler's context was ended by this question.
	Cancelled bool
}

// Question is a message to an instance that asks for an id's whereabouts, or to end its run.
type Question struct {
	Shard  lowkiq.Shard
	ID     string
	Answer string        // the channel to answer on
	Cancel *Cancellation // nil: nothing is to be ended
}

// Then is what is to become of an id whose run a person ends.
type Then string

// What can become of it.
const (
	ThenRetry  Then = "retry"  // it is due now, no retry spent
	ThenHold   Then = "hold"   // it waits until it is released
	ThenBury   Then = "bury"   // its payloads go to the morgue
	ThenDelete Then = "delete" // they are forgotten
)

// Thens are all of them.
func Thens() []Then { return []Then{ThenRetry, ThenHold, ThenBury, ThenDelete} }

// Cancellation is that of a run: what is to become of its id, who asks for that, and why.
type Cancellation struct {
	Then Then   `json:"then"`
	By   string `json:"by,omitempty"`
	Why  string `json:"why,omitempty"`
}

// asked and answered are the forms of a question and its answer.
type asked struct {
	Queue  string        `json:"queue"`
	Shard  int           `json:"shard"`
	ID     string        `json:"id"`
	Bytes  []byte        `json:"id_bytes,omitempty"` // those of an id that is not UTF-8: it has no text in JSON
	Answer string        `json:"answer"`             // the last part of the channel's name
	Cancel *Cancellation `json:"cancel,omitempty"`
}

type answered struct {
	Stage     Stage `json:"stage"`
	For       int64 `json:"for_ms,omitempty"`
	Cancelled bool  `json:"cancelled,omitempty"`
}

const whereMail = "where "

// encodeQuestion is the message that decodeQuestion reads.
func encodeQuestion(s lowkiq.Shard, id, answer string, cancel *Cancellation) (string, error) {
	a := asked{Queue: s.Queue, Shard: s.Index, ID: id, Answer: answer, Cancel: cancel}
	if !utf8.ValidString(id) {
		a.Bytes = []byte(id)
	}
	text, err := json.Marshal(a)
	return whereMail + string(text), err
}

// decodeQuestion reads a question; nil: it is another message.
func (c *Client) decodeQuestion(payload string) *Question {
	text, found := strings.CutPrefix(payload, whereMail)
	var a asked
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
	return c.ask(ctx, instance, s, id, nil, patience)
}

// Cancel asks an instance to end the handler call that an id is in, and says where it was. If the instance does not listen, or does not answer
// within patience, the answer is empty, and it is unknown whether the call was ended.
func (c *Client) Cancel(ctx context.Context, instance string, s *Shard, id string, why Cancellation, patience time.Duration) (Whereabouts, error) {
	return c.ask(ctx, instance, s, id, &why, patience)
}

func (c *Client) ask(ctx context.Context, instance string, s *Shard, id string, cancel *Cancellation, patience time.Duration) (Whereabouts, error) {
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
		return Whereabouts{}, c.unanswered(ctx, instance, err)
	}
	if n, err := c.db.Publish(ctx, c.db.Keys.To(instance), question); n == 0 {
		return Whereabouts{}, c.unanswered(ctx, instance, err)
	}
	for {
		msg, err := answers.Receive(ctx, patience)
		if err != nil {
			return Whereabouts{}, c.unanswered(ctx, instance, err)
		}
		var a answered
		if json.Unmarshal([]byte(msg.Payload), &a) == nil {
			return Whereabouts{a.Stage, time.Duration(a.For) * time.Millisecond, a.Cancelled}, nil
		}
	}
}

// unanswered is nil if all that went wrong is that no answer came in time.
func (c *Client) unanswered(ctx context.Context, instance string, err error) error {
	if err == nil || redisdb.TimedOut(err) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil
	}
	return c.db.Explain("ask "+instance, err)
}

// Answer answers a question.
func (c *Client) Answer(ctx context.Context, q *Question, w Whereabouts) error {
	text, err := json.Marshal(answered{w.Stage, w.For.Milliseconds(), w.Cancelled})
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	_, err = c.db.Do(ctx, "answer", "PUBLISH", q.Answer, text)
	return err
}
