package queue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/envelope"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Acks are ids of one flight that are done.
type Acks struct {
	Flight int64
	IDs    []string
	// Rest: all that is left of the flight is done; IDs is not looked at. It is the
	// cheapest ack. Every other job of the flight must have been nacked or buried, and
	// Redis must have said so.
	Rest bool
	// Answers are what their handler had to say beside that they are done, or whom it is to be told to.
	// IDs has all of theirs, also with Rest.
	Answers []Answer
	// Runs are the lines that the journal gets, at the places of their IDs; empty if it gets none. Rest does
	// not go with it.
	Runs journal.Block
	// InRow: IDs came one after the other in the flight's pop, none is missing between the first and the
	// last one. Acks with Runs are cheaper then.
	InRow bool
}

// Answer is what goes with the end of a job, in one step or not at all.
type Answer struct {
	ID string
	// Callers is how many calls wait for the end of its payloads: they get the result. Bytes are those of
	// the payloads, which are looked through for calls.
	Callers, Bytes int
	Result         []byte // nil: none
	State          []byte // of the id; see Stated
	Stated         bool   // it is replaced, or deleted if State is nil
	Noted          bool   // there are notes about the job, which end with it; see Claim.Note
	// StateFor is how long states are kept after their last write, 0 for ever. It is the same in all
	// answers of a queue.
	StateFor time.Duration
}

// weight is what an answer costs Redis, in bytes.
func (a *Answer) weight() int {
	n := len(a.Result) + len(a.State) + answerWeight
	if a.Callers > 0 {
		n += a.Bytes + a.Callers*callerWeight
	}
	return n
}

// answerWeight is what an answer costs beside its bytes, callerWeight what it costs to tell one call;
// answersBytes is how much goes to one script, but for one large answer: Redis serves no other client
// meanwhile. The calls of one answer are those of a flight's payloads, of which there are no more than
// lua/lib/spill.lua lets a pop take.
const (
	answerWeight = 1 << 10
	callerWeight = 512
	answersBytes = 1 << 20
)

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

// ackChunk is the most acks that one script gets: Redis serves no other client meanwhile, and Lua
// has no room for more than 8,000 ids at once. Each id is one, and each flight that is named some
// more: it must be found.
const (
	ackChunk  = 2000
	ackFlight = 16
)

// cutAcks splits acks into what one script gets and what follows it.
func cutAcks(acks []Acks) (first, rest []Acks) {
	room := ackChunk
	for i, a := range acks {
		if room -= ackFlight; room < 1 {
			return acks[:i], acks[i:]
		}
		if a.Rest {
			continue
		}
		if len(a.IDs) > room {
			begin, end := a.cut(room)
			return append(slices.Clone(acks[:i]), begin), append([]Acks{end}, acks[i+1:]...)
		}
		room -= len(a.IDs)
	}
	return acks, nil
}

// cut splits acks of a flight before one of its ids.
func (a *Acks) cut(at int) (begin, end Acks) {
	begin, end = *a, *a
	begin.Rest = false
	begin.IDs, end.IDs = a.IDs[:at:at], a.IDs[at:]
	begin.Answers, end.Answers = answersOf(begin.IDs, a.Answers)
	begin.Runs, end.Runs = a.Runs.Cut(at)
	return begin, end
}

// answersOf splits answers into those of some ids and the others.
func answersOf(ids []string, answers []Answer) (of, others []Answer) {
	if len(answers) == 0 {
		return nil, nil
	}
	some := map[string]bool{}
	for _, id := range ids {
		some[id] = true
	}
	for _, a := range answers {
		if some[a.ID] {
			of = append(of, a)
		} else {
			others = append(others, a)
		}
	}
	return of, others
}

// sayMore reports whether any of the acks says more than that.
func sayMore(acks []Acks) bool {
	return slices.ContainsFunc(acks, func(a Acks) bool { return len(a.Answers) > 0 || !a.Runs.Empty() })
}

// completions are the calls of lua/complete.lua for acks of which some say more.
func (c *Claim) completions(acks []Acks) (calls []*redisdb.Call) {
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
				args = first[i].Answers[k].append(args, first[i].Flight)
			}
		}
		calls = append(calls, &redisdb.Call{Script: script, Keys: c.keys.For(script), Args: args})
	}
	return calls
}

// complete sends acks of which some say more, in parts.
func (c *Claim) complete(ctx context.Context, acks []Acks) (total int, err error) {
	for _, call := range c.completions(acks) {
		reply, err := run(ctx, c.registry.db, call.Script, call.Keys, call.Args...)
		if err != nil {
			return total, fmt.Errorf("shard %s: %w", c.Shard, err)
		}
		n, _ := reply.(int64)
		total += int(n)
	}
	return total, nil
}

// append adds the arguments of lua/complete.lua.
func (a *Answer) append(args []any, flight int64) []any {
	reply := ""
	switch {
	case a.Callers > 0 && a.Result == nil:
		reply = envelope.Done
	case a.Callers > 0:
		reply = envelope.Done + "\n" + string(a.Result)
	}
	return append(args, flight, a.ID, reply, stateArg(a.State, a.Stated))
}

// stateArg is what lua/lib/keep.lua gets.
func stateArg(state []byte, stated bool) string {
	switch {
	case !stated:
		return ""
	case state == nil:
		return "-"
	}
	return "=" + string(state)
}

// cutAnswers splits acks into what one lua/complete.lua gets and what follows it. A flight's rest can
// be acked only when its other answers are on their way: before those are, its ids are named.
func cutAnswers(acks []Acks) (first, rest []Acks) {
	room := answersBytes
	for i, a := range acks {
		weight := a.weights()
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
			begin, end := a.cut(k)
			return append(slices.Clone(acks[:i]), begin), append([]Acks{end}, acks[i+1:]...)
		}
	}
	return acks, nil
}

// weights says what the id at a place costs Redis beside its ack, in bytes; nil if none costs any.
func (a *Acks) weights() func(place int) int {
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
			weight = max(weight, answerWeight) + line // what was noted while it ran goes before its line
		}
		return weight
	}
}

// Ack says that jobs are done. It returns how many were still in their flight; to
// repeat it does nothing. Very many are sent in parts.
func (c *Claim) Ack(ctx context.Context, acks ...Acks) (total int, err error) {
	for {
		first, rest := cutAcks(acks)
		n, err := c.ack(ctx, first)
		if total += n; err != nil || len(rest) == 0 {
			return total, err
		}
		acks = rest
	}
}

func (c *Claim) ack(ctx context.Context, acks []Acks) (int, error) {
	if sayMore(acks) {
		return c.complete(ctx, acks)
	}
	args := appendAcks([]any{c.Instance, c.fence, c.keys.Wake}, acks)
	reply, _, err := c.registry.sharing.ask(&part{
		Call: redisdb.Call{Script: c.registry.db.Scripts.Ack, Keys: c.pop[:8], Args: args},
		ctx:  ctx, shard: c.Shard, acks: len(acks) + ackCount(acks),
	})
	if err != nil {
		return 0, fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	n, _ := reply.(int64)
	return int(n), nil
}
