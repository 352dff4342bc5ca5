package queue

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/journal"
	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// NackKind is what happens to a job that was not done.
type NackKind string

// The kinds of a nack.
const (
	Retry    NackKind = "retry"    // it failed: due again after Delay, with this retry count and error
	Postpone NackKind = "postpone" // its handler or its group asked for a delay: no retry is spent
	Hold     NackKind = "hold"     // people hold it: it waits until it is released, no retry is spent
	Return   NackKind = "return"   // no handler saw it: back to the head, unchanged
)

// Nack puts one job of a flight back.
type Nack struct {
	Flight     int64
	ID         string
	Kind       NackKind
	RetryCount int           // for Retry; of Postpone the journal gets it
	Delay      time.Duration // for Retry and Postpone
	Error      string        // for Retry, cut to maxError bytes; of others the journal gets it
	Cancelled  bool          // a person has ended the run, for the journal
	Limited    bool          // it was no run: its group is at its limit
	Group      bool          // its group has put it off: once that lets it, it runs sooner
	Ran        journal.Ran   // for the journal
}

// Policy is what happens to a job that ran out of retries.
type Policy string

// The policies.
const (
	Skip  Policy = "skip"  // the payload with the smallest score to the morgue, the rest goes on
	Bury  Policy = "bury"  // all payloads of the flight to the morgue
	Block Policy = "block" // the id waits, accumulating, for a person
	Drop  Policy = "drop"  // all payloads of the flight are forgotten: people ask for it, or their time is over
)

// Burial is a job of a flight that ran out of retries, or of time.
type Burial struct {
	Flight     int64
	ID         string
	Policy     Policy
	RetryCount int
	Error      string      // cut to maxError bytes
	Cancelled  bool        // a person has ended the run, to Bury or to Drop: no failure
	Ran        journal.Ran // for the journal
	// Expired is about how many payloads it is whose time was over before a handler had them, to Bury or to Drop: no
	// failure; 0: it is about something else. Places are their places among the payloads of the job, from 0, and
	// the rest goes back to the head of the line as it was; nil: they are all.
	Expired int
	Places  []int
}

// ToMorgue are those of a job's payloads that go to the morgue.
func (b *Burial) ToMorgue(payloads []lowkiq.Payload) (gone []lowkiq.Payload) {
	switch {
	case b.Policy == Drop || b.Policy == Block || len(payloads) == 0:
		return nil
	case b.Policy == Skip:
		return payloads[:1]
	case b.Places == nil:
		return payloads
	}
	for _, place := range b.Places {
		gone = append(gone, payloads[place])
	}
	return gone
}

// verdict is what lua/bury.lua reads: the policy, and what expired, or that a person has ended the run.
func (b *Burial) verdict() string {
	switch {
	case b.Expired > 0:
	case b.Cancelled && b.Policy == Bury:
		return string(b.Policy) + " cancelled"
	default:
		return string(b.Policy)
	}
	text := []byte(b.Policy + " expired")
	for _, place := range b.Places {
		text = fmt.Appendf(text, "%04d", place+1) // a flight has no more of an id
	}
	return string(text)
}

// maxError bounds the error text kept with a job, bytes.
const maxError = 4096

// KeptError is what is kept of an error's text.
func KeptError(text string) string { return cutError(text) }

// cutError leaves out the middle of a long text: a stack trace begins with what went wrong,
// or, in Python, ends with it.
func cutError(text string) string {
	const gap, tail = "\n...\n", maxError / 4
	if len(text) <= maxError {
		return text
	}
	return strings.ToValidUTF8(text[:maxError-tail-len(gap)], "") + gap + strings.ToValidUTF8(text[len(text)-tail:], "")
}

// Summary is the line of an error that says most: the first one, or of a Python traceback the
// last one.
func Summary(message string) string {
	message = strings.TrimSpace(message)
	if strings.HasPrefix(message, "Traceback (most recent call last)") {
		return message[strings.LastIndexByte(message, '\n')+1:]
	}
	line, _, _ := strings.Cut(message, "\n")
	return line
}

// nackChunk is how many jobs one script puts back.
const nackChunk = 500

// Nack puts jobs back; to repeat it does nothing. It returns how many were still in
// their flight.
func (c *Claim) Nack(ctx context.Context, nacks ...Nack) (int, error) {
	return c.settle(ctx, c.registry.db.Scripts.Nack, len(nacks), func(from, to int) []any {
		rule := c.Journal()
		args := []any{c.Instance, c.fence, rule.Bounds()}
		for _, n := range nacks[from:to] {
			text, line := cutError(n.Error), ""
			if run := n.Run(); run != nil {
				line = rule.Line(run)
			}
			kind := string(n.Kind)
			if n.Kind == Postpone && (n.Limited || n.Group) {
				kind = "limited"
			}
			args = append(args, n.Flight, n.ID, kind, n.RetryCount, max(0, n.Delay.Microseconds()), text, line)
		}
		return args
	})
}

// Bury deals with jobs that ran out of retries or time; to repeat it does nothing. It returns
// how many were still in their flight.
func (c *Claim) Bury(ctx context.Context, burials ...Burial) (int, error) {
	return c.settle(ctx, c.registry.db.Scripts.Bury, len(burials), func(from, to int) []any {
		rule := c.Journal()
		args := []any{c.Instance, c.fence, rule.Bounds()}
		for _, b := range burials[from:to] {
			text := cutError(b.Error)
			args = append(args, b.Flight, b.ID, b.verdict(), b.RetryCount, text, rule.Line(b.Run()))
		}
		return args
	})
}

// settle runs a script that takes some of n jobs out of their flights and says how many, until all
// are: Redis serves no other client meanwhile. args gives its arguments for some of them.
func (c *Claim) settle(ctx context.Context, script *redisdb.Script, n int, args func(from, to int) []any) (total int, err error) {
	for from := 0; from < n; {
		to := min(from+nackChunk, n)
		reply, err := c.Run(ctx, script, args(from, to)...)
		if err != nil {
			return total, fmt.Errorf("shard %s: %w", c.Shard, err)
		}
		r, ok := twoNumbers(reply)
		if !ok || r[1] < 1 || r[1] > to-from {
			return total, fmt.Errorf("shard %s: %s answered %v for %d jobs", c.Shard, script.Name, reply, to-from)
		}
		total, from = total+r[0], from+r[1]
	}
	return total, nil
}

// twoNumbers reads an answer of that form.
func twoNumbers(reply any) (n [2]int, ok bool) {
	r, _ := reply.([]any)
	if len(r) != len(n) {
		return n, false
	}
	for i := range n {
		v, ok := r[i].(int64)
		if !ok {
			return n, false
		}
		n[i] = int(v)
	}
	return n, true
}
