package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

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
	ForProcess Stage = "process" // all processes of its handler are busy
	ForSlot    Stage = "slot"    // the node is at its concurrency
	Handled    Stage = "handler" // a handler has it
)

// Whereabouts is what a node knows of an id in flight.
type Whereabouts struct {
	Stage Stage         // "": it does not know the id
	For   time.Duration // how long a handler has had it, 0 while none has
}

// Question is a message to an instance that asks for an id's whereabouts.
type Question struct {
	Shard  lowkiq.Shard
	ID     string
	Answer string // the channel to answer on
}

// asked and answered are the forms of a question and its answer.
type asked struct {
	Queue  string `json:"queue"`
	Shard  int    `json:"shard"`
	ID     string `json:"id"`
	Answer string `json:"answer"` // the last part of the channel's name
}

type answered struct {
	Stage Stage `json:"stage"`
	For   int64 `json:"for_ms,omitempty"`
}

const whereMail = "where "

// encodeQuestion is the message that decodeQuestion reads.
func encodeQuestion(s lowkiq.Shard, id, answer string) (string, error) {
	text, err := json.Marshal(asked{s.Queue, s.Index, id, answer})
	return whereMail + string(text), err
}

// decodeQuestion reads a question; nil: it is another message.
func (c *Client) decodeQuestion(payload string) *Question {
	text, found := strings.CutPrefix(payload, whereMail)
	var a asked
	if !found || json.Unmarshal([]byte(text), &a) != nil || a.Queue == "" || a.Answer == "" {
		return nil
	}
	return &Question{Shard: lowkiq.Shard{Queue: a.Queue, Index: a.Shard}, ID: a.ID, Answer: c.db.Keys.Answer(a.Answer)}
}

// Whereabouts asks an instance where it has an id in flight. If it does not listen, or does not
// answer within patience, the answer is empty.
func (c *Client) Whereabouts(ctx context.Context, instance string, s *Shard, id string, patience time.Duration) (Whereabouts, error) {
	name := ulid.Make().String()
	question, err := encodeQuestion(s.Shard, id, name)
	if err != nil {
		return Whereabouts{}, fmt.Errorf("ask %s: %w", instance, err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
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
			return Whereabouts{a.Stage, time.Duration(a.For) * time.Millisecond}, nil
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
	text, err := json.Marshal(answered{w.Stage, w.For.Milliseconds()})
	if err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	_, err = c.db.Do(ctx, "answer", "PUBLISH", q.Answer, text)
	return err
}
