package workflow

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Shards is the number of shards with which the queue of workflows is registered. It may be resharded.
const Shards = 16

// Rules returns the rules of the queue of workflows. A run handles all payloads that wait for an id. Its follow-ups go into
// one ack, and so do the members that stay behind. That bounds the payloads.
func Rules() rules.Rules {
	return rules.Rules{BatchSize: 20, State: -1, Push: rules.Push{PayloadBytes: maxMessage, IDPayload: maxMessage + 40<<10}}
}

// maxMessage is the maximum size of a start or an add in bytes, as it is stored.
const maxMessage = 600 << 10

// Handler handles the queue of workflows. now estimates Redis's clock.
func Handler(now func() time.Time) lowkiq.Handler {
	return lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		failed := lowkiq.Failed{}
		for i := range batch.Jobs {
			job := &batch.Jobs[i]
			if err := handleJob(batch.Answer(job.ID), job, now()); err != nil {
				failed[job.ID] = err
			}
		}
		if len(failed) > 0 {
			return failed
		}
		return nil
	})
}

// handleJob handles the messages of a workflow, or a timer.
func handleJob(answer *lowkiq.Answer, job *lowkiq.Job, now time.Time) error {
	if id, ok := ofHelper(job.ID); ok {
		return handleHelper(answer, id, job)
	}
	events := make([]event, len(job.Payloads))
	bad := map[int]error{}
	for i := range job.Payloads {
		var err error
		if events[i], err = parseEvent(job.Payloads[i].Data); err != nil {
			bad[i] = err
		}
	}
	if len(bad) > 0 {
		return buryRefused(bad)
	}
	s, err := readState(job.State)
	if err != nil {
		return err
	}
	had := s != nil
	o := step(job.ID, s, events, now)
	if len(o.refused) > 0 {
		return buryRefused(o.refused)
	}
	switch {
	case o.state != nil:
		text, err := json.Marshal(o.state)
		if err != nil {
			return err
		}
		answer.State(text)
	case had:
		answer.State(nil)
	}
	began := int64(0)
	if o.state != nil {
		began = o.state.Began
	}
	return o.send(answer, job.ID, began)
}

// handleHelper handles a timer, which becomes a message for its workflow, or a rest, whose members leave.
func handleHelper(answer *lowkiq.Answer, workflow string, job *lowkiq.Job) error {
	for i := range job.Payloads {
		var m message
		if err := json.Unmarshal(job.Payloads[i].Data, &m); err != nil {
			return lowkiq.Bury{Reason: "not a message of a workflow: " + err.Error()}
		}
		if m.Kind != kindRest {
			answer.Then(protocol.Workflows, lowkiq.Push{ID: workflow, Payload: job.Payloads[i].Data})
			continue
		}
		if err := (&outcome{members: m.Jobs}).send(answer, workflow, m.Began); err != nil {
			return err
		}
	}
	return nil
}

// buryRefused returns an answer that buries payloads by place. The other payloads come again at once.
func buryRefused(refused map[int]error) error {
	places := slices.Sorted(maps.Keys(refused))
	return lowkiq.Bury{Reason: refused[places[0]].Error(), Payloads: places}
}

func readState(text []byte) (*state, error) {
	if text == nil {
		return nil, nil
	}
	var s *state
	if err := json.Unmarshal(text, &s); err != nil || s == nil {
		return nil, fmt.Errorf("the state of the workflow cannot be read: %w", cmp.Or(err, errors.New("it is null")))
	}
	if s.Version != stateVersion {
		return nil, fmt.Errorf("the state of the workflow has form %d of a later release", s.Version)
	}
	return s, nil
}

// Bounds of the follow-ups of a run.
const (
	maxLeaving = lowkiq.MaxFollowUps - 20         // members that leave with a run; the others are for Done, Dead, timers and rests
	maxRest    = 400 << 10                        // bytes of a rest, below Rules().IDPayload
	maxBytes   = lowkiq.MaxFollowUpBytes - 16<<10 // bytes above which no more members leave
)

// send adds the pushes and members of a run to its answer. Members that are too many go into rests, which send them later.
// Rests may have more than maxBytes, because messages that wait together after a flight came back may have more than
// Rules().IDPayload bytes. They have at most those of a flight, which are 1 MiB for an id (lua/lib/spill.lua), and a serial
// for each member. So they are fewer than 20.
func (o *outcome) send(answer *lowkiq.Answer, id string, began int64) error {
	size := 0
	for i := range o.pushes {
		size += len(o.pushes[i].Data)
		if err := o.pushes[i].addTo(answer); err != nil {
			return err
		}
	}
	texts, rest := make([]json.RawMessage, len(o.members)), 0
	for i := range o.members {
		var err error
		if texts[i], err = json.Marshal(&o.members[i]); err != nil {
			return err
		}
		rest += len(texts[i]) + 1
	}
	n := 0
	for ; n < min(len(o.members), maxLeaving); n++ {
		one := o.members[n].push
		stored, err := protocol.FollowUp{Queue: one.Queue, ID: one.ID, Payload: one.Data}.Member(id, o.members[n].words(began))
		if err != nil {
			return err
		}
		one.Data = stored.Payload
		size, rest = size+len(one.Data), rest-len(texts[n])-1
		if size+rest > maxBytes {
			break
		}
		if err := one.addTo(answer); err != nil {
			return err
		}
	}
	for n < len(texts) {
		first, bytes := n, 0
		for ; n < len(texts) && (n == first || bytes+len(texts[n]) < maxRest); n++ {
			bytes += len(texts[n]) + 1
		}
		text, err := json.Marshal(struct {
			Kind  string            `json:"kind"`
			Began int64             `json:"began"`
			Jobs  []json.RawMessage `json:"jobs"`
		}{kindRest, began, texts[first:n]})
		if err != nil {
			return err
		}
		push := push{Queue: protocol.Workflows, ID: helperID(kindRest, began, o.members[first].Serial, id), Data: text}
		if err := push.addTo(answer); err != nil {
			return err
		}
	}
	return nil
}

// addTo adds a push to an answer. Its payload is in its stored form.
func (p *push) addTo(answer *lowkiq.Answer) error {
	of := lowkiq.Push{ID: p.ID, Payload: p.Data}
	if p.Score != "" {
		score, err := strconv.ParseFloat(p.Score, 64)
		if err != nil {
			return fmt.Errorf("the score of a member: %w", err)
		}
		of.Score = &score
	}
	if p.At != 0 {
		of.PerformAt = time.UnixMicro(p.At)
	}
	answer.Then(p.Queue, of)
	return nil
}
