package protocol

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Acks names jobs of a flight that are done.
type Acks struct {
	Flight int64
	IDs    []string
	// Rest means that all jobs left in the flight are done. IDs is ignored, except for Answers. This is the
	// cheapest ack. All other jobs of the flight must have been nacked or buried before, and Redis must have
	// confirmed it. Otherwise they would end as done.
	Rest bool
	// Answers holds the data that Redis stores or sends with the end of a job, for the jobs that have such data.
	// IDs must contain their ids, also with Rest.
	Answers []Answer
	// Runs has the lines for the journal, at the positions of their jobs in IDs. It is empty if the journal
	// gets none. It must not be used with Rest.
	Runs journal.Block
	// InRow means that IDs came one after the other in the flight's pop, without a gap. Acks with Runs are
	// cheaper then.
	InRow bool
}

// Answer is the part of a handler's answer for a job that goes beyond "done". Redis applies it in the step that
// ends the job, or not at all.
type Answer struct {
	ID string
	// Callers is the number of calls that wait for the end of the payloads and get the result. Bytes is the
	// size of the payloads, which the script searches for calls.
	Callers, Bytes int
	Result         []byte // nil if there is none
	State          []byte // the new state of the id, if SetState; nil deletes the state
	SetState       bool   // replaces the state of the id
	Then           []FollowUp
	HasNotes       bool // the handler has noted progress, which ends with the job; see Claim.Note
	// StateFor is how long states are kept after their last write, 0 for ever. It is the same in all
	// answers of a queue.
	StateFor time.Duration
}

// weight returns the cost of an answer in Redis, in bytes.
func (a *Answer) weight() int {
	n := len(a.Result) + len(a.State) + answerWeight
	if a.Callers > 0 {
		n += a.Bytes + a.Callers*callerWeight
	}
	for i := range a.Then {
		n += len(a.Then[i].Payload) + answerWeight
	}
	return n
}

// Redis serves no other client during a script, so a script gets a bounded weight of answers. An answer has a
// bounded number of callers: they come with a flight's payloads, which lua/lib/spill.lua bounds.
const (
	answerWeight   = 1 << 10 // of an answer, besides its bytes
	callerWeight   = 512     // of the reply to a call
	maxAnswerBytes = 1 << 20 // of a script, unless a single answer is heavier
)

// appendAcks appends the arguments of lua/ack.lua: per flight its number, the number of ids, and the ids. The
// number of ids is 0 for the rest of a flight.
func appendAcks(args []any, acks []Acks) []any {
	for _, a := range acks {
		if a.Rest {
			args = append(args, a.Flight, 0)
			continue
		}
		if len(a.IDs) == 0 {
			continue
		}
		args = append(args, a.Flight, len(a.IDs))
		for i := range a.IDs {
			args = append(args, &a.IDs[i])
		}
	}
	return args
}

// Redis serves no other client during a script, and Lua has no room for more than 8,000 ids at once.
const (
	maxAckChunk   = 2000 // cost of the acks of a script; an id costs 1
	flightAckCost = 16   // cost of a flight, which the script must find
)

// cutAcks splits acks into the part for a script and the rest.
func cutAcks(acks []Acks) (first, rest []Acks) {
	room := maxAckChunk
	for i, a := range acks {
		if room -= flightAckCost; room < 1 {
			return acks[:i], acks[i:]
		}
		if a.Rest {
			continue
		}
		if len(a.IDs) > room {
			begin, end := a.splitAt(room)
			return append(slices.Clone(acks[:i]), begin), append([]Acks{end}, acks[i+1:]...)
		}
		room -= len(a.IDs)
	}
	return acks, nil
}

// splitAt splits the acks of a flight before the id at a position.
func (a *Acks) splitAt(at int) (begin, end Acks) {
	begin, end = *a, *a
	begin.Rest = false
	begin.IDs, end.IDs = a.IDs[:at:at], a.IDs[at:]
	begin.Answers, end.Answers = splitAnswers(begin.IDs, a.Answers)
	begin.Runs, end.Runs = a.Runs.Cut(at)
	return begin, end
}

// splitAnswers splits answers into the answers of some ids and all others.
func splitAnswers(ids []string, answers []Answer) (of, others []Answer) {
	if len(answers) == 0 {
		return nil, nil
	}
	among := map[string]bool{}
	for _, id := range ids {
		among[id] = true
	}
	for _, a := range answers {
		if among[a.ID] {
			of = append(of, a)
		} else {
			others = append(others, a)
		}
	}
	return of, others
}

// needComplete reports whether acks have answers or lines for the journal. lua/complete.lua must then end the
// jobs. lua/ack.lua only takes ids.
func needComplete(acks []Acks) bool {
	return slices.ContainsFunc(acks, func(a Acks) bool { return len(a.Answers) > 0 || !a.Runs.Empty() })
}

// completeCalls returns the calls of lua/complete.lua for acks with answers or lines for the journal. They
// must run in this order.
func (c *Claim) completeCalls(acks []Acks) (calls []*redisdb.Call) {
	script := c.registry.db.Scripts.Complete
	for len(acks) > 0 {
		var first []Acks
		first, acks = cutAnswers(acks)
		args := []any{c.Instance, c.fence, c.keys.Wake, 0, c.Journal().Bounds(), 0}
		var blocks []any
		for i := range first {
			a := &first[i]
			if a.Runs.Empty() {
				args = appendAcks(args, first[i:i+1])
				continue
			}
			lines := a.Runs.Lines()
			blocks = append(blocks, a.Flight, lines, &a.IDs[0], &a.IDs[len(a.IDs)-1], a.Runs.Text())
			if a.InRow && lines == len(a.IDs) {
				args = append(args, "#"+strconv.Itoa(len(blocks)/5), 0)
			} else {
				args = appendAcks(args, first[i:i+1])
			}
		}
		args[5] = len(args) - 6
		args = append(append(args, len(blocks)/5), blocks...)
		for i := range first {
			for k := range first[i].Answers {
				args[3] = first[i].Answers[k].StateFor.Microseconds()
				args = first[i].Answers[k].appendArgs(args, first[i].Flight)
			}
		}
		calls = append(calls, &redisdb.Call{Script: script, Keys: c.keys.For(script), Args: args})
	}
	return calls
}

// sendComplete sends acks by lua/complete.lua. It returns how many jobs were still in their flight.
func (c *Claim) sendComplete(ctx context.Context, acks []Acks) (total int, err error) {
	for _, call := range c.completeCalls(acks) {
		reply, err := runScript(ctx, c.registry.db, call.Script, call.Keys, call.Args...)
		if err != nil {
			return total, fmt.Errorf("shard %s: %w", c.Shard, err)
		}
		n, _ := reply.(int64)
		total += int(n)
	}
	return total, nil
}

// appendArgs appends the arguments of lua/complete.lua for an answer.
func (a *Answer) appendArgs(args []any, flight int64) []any {
	reply := ""
	switch {
	case a.Callers > 0 && a.Result == nil:
		reply = envelope.Done
	case a.Callers > 0:
		reply = envelope.Done + "\n" + string(a.Result)
	}
	args = append(args, flight, a.ID, reply, stateArg(a.State, a.SetState), len(a.Then))
	for i := range a.Then {
		one := &a.Then[i]
		at := ""
		if one.At != 0 {
			at = strconv.FormatInt(one.At, 10)
		}
		args = append(args, one.Queue, one.ID, one.Payload, one.Score, at)
	}
	return args
}

// stateArg returns the argument for lua/lib/keep.lua: "" keeps the state, "-" deletes it, and "=" comes before a
// new state.
func stateArg(state []byte, set bool) string {
	switch {
	case !set:
		return ""
	case state == nil:
		return "-"
	}
	return "=" + string(state)
}

// cutAnswers splits acks into the part for a run of lua/complete.lua and the rest. Acks of the rest of a
// flight end all its jobs. So if such acks are cut, the first part names its ids, and only the last part acks
// the rest. Otherwise the first script would end jobs whose answers come later.
func cutAnswers(acks []Acks) (first, rest []Acks) {
	room := maxAnswerBytes
	for i, a := range acks {
		weight := a.weightFunc()
		for k := range a.IDs {
			if weight == nil {
				break
			}
			if room -= weight(k); room >= 0 || k == 0 && i == 0 {
				continue
			}
			if k == 0 {
				return acks[:i], acks[i:]
			}
			begin, end := a.splitAt(k)
			return append(slices.Clone(acks[:i]), begin), append([]Acks{end}, acks[i+1:]...)
		}
	}
	return acks, nil
}

// weightFunc returns a function for the cost in Redis, in bytes, of the id at a position, beyond its ack. It
// returns nil if no id costs more.
func (a *Acks) weightFunc() func(place int) int {
	if len(a.Answers) == 0 && a.Runs.Empty() {
		return nil
	}
	answers := make(map[string]int, len(a.Answers))
	for i := range a.Answers {
		answers[a.Answers[i].ID] = a.Answers[i].weight()
	}
	return func(place int) int {
		weight := answers[a.IDs[place]]
		if line := a.Runs.Weight(place); line > 0 {
			weight = max(weight, answerWeight) + line // the line gets the notes of the run
		}
		return weight
	}
}

// Ack ends jobs as done. It returns how many of them were still in their flight. Repeating it does nothing, so
// after an error it may be called again. Very many jobs are sent in parts.
func (c *Claim) Ack(ctx context.Context, acks ...Acks) (total int, err error) {
	for {
		first, rest := cutAcks(acks)
		n, err := c.sendAcks(ctx, first)
		if total += n; err != nil || len(rest) == 0 {
			return total, err
		}
		acks = rest
	}
}

func (c *Claim) sendAcks(ctx context.Context, acks []Acks) (int, error) {
	if needComplete(acks) {
		return c.sendComplete(ctx, acks)
	}
	args := appendAcks([]any{c.Instance, c.fence, c.keys.Wake}, acks)
	reply, _, err := c.registry.shared.sendShared(&shardRequest{
		Call: redisdb.Call{Script: c.registry.db.Scripts.Ack, Keys: c.pop[:10], Args: args},
		ctx:  ctx, shard: c.Shard, acks: len(acks) + countAcks(acks),
	})
	if err != nil {
		return 0, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	n, _ := reply.(int64)
	return int(n), nil
}
