package protocol

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// NackKind says why a job is put back and when it is due again.
type NackKind string

// The kinds of a nack. Only Retry counts as a retry.
const (
	Retry    NackKind = "retry"    // the job failed; it is due after Delay, with the retry count and error of the Nack
	Postpone NackKind = "postpone" // its handler or its group asked for a delay; it is due after Delay
	Hold     NackKind = "hold"     // people hold the id; it waits until they release it
	Return   NackKind = "return"   // no handler had the job; it goes back to the head of the line, unchanged
)

// Nack puts a job of a flight back.
type Nack struct {
	Flight     int64
	ID         string
	Kind       NackKind
	RetryCount int           // stored with a Retry; for the journal with a Postpone
	Delay      time.Duration // for Retry and Postpone
	Error      string        // stored with a Retry, cut to maxError bytes; for the journal with other kinds
	Cancelled  bool          // a person has ended the run; for the journal
	Limited    bool          // the job had no run, because its group is at its limit; an id in quarantine stays there, without the delay
	Group      bool          // a handler has stopped the job's group; the job is due at once when a person lets the group go on
	Ran        journal.Ran   // for the journal
}

// Policy says what happens to a job that has no retries left.
type Policy = rules.Policy

// The policies. They concern the payloads of the flight, not those that were pushed since.
const (
	Skip  Policy = "skip"  // the payload with the smallest score goes to the morgue, the others are tried again
	Bury  Policy = "bury"  // all payloads go to the morgue
	Block Policy = "block" // the id waits for a person and collects payloads
	Drop  Policy = "drop"  // all payloads are deleted, because a person asked for it or they have expired
)

// Burial is a job of a flight that has no retries left, or has payloads that have expired.
type Burial struct {
	Flight     int64
	ID         string
	Policy     Policy
	RetryCount int
	Error      string      // cut to maxError bytes
	Cancelled  bool        // a person has ended the run, with Bury or Drop; this is no failure
	Ran        journal.Ran // for the journal
	// Expired is the number of payloads that expired before a handler had them. Their policy is Bury or Drop, and
	// this is no failure. 0 means that the burial has another cause.
	Expired int
	// Places are positions of payloads in the job, from 0, for the policies Bury and Drop. The rest of the job
	// goes back to the head of the ready line, as it was. nil stands for all payloads.
	Places []int
}

// ToMorgue returns the payloads of a job that go to the morgue.
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

// verdictArg returns the policy as lua/bury.lua reads it, with the cause and the places.
func (b *Burial) verdictArg() string {
	cause := "failed"
	switch {
	case b.Expired > 0:
		cause = "expired"
	case b.Cancelled:
		cause = "cancelled"
	case b.Places != nil:
		cause = "some"
	}
	text := fmt.Appendf(nil, "%s %s ", b.Policy, cause)
	for _, place := range b.Places {
		text = fmt.Appendf(text, "%04d", place+1) // a flight has at most 2,000 payloads of an id
	}
	return string(text)
}

// maxError is the maximum size in bytes of the error text stored with a job.
const maxError = 4096

// KeptError returns an error's text as it is stored, at most maxError bytes. It cuts the middle out of a long text, because
// a stack trace begins with the error or, in Python, ends with it.
func KeptError(text string) string {
	const gap, tail = "\n...\n", maxError / 4
	if len(text) <= maxError {
		return text
	}
	return strings.ToValidUTF8(text[:maxError-tail-len(gap)], "") + gap + strings.ToValidUTF8(text[len(text)-tail:], "")
}

// Summary returns the line of an error that says most: the last line of a Python traceback, else the first
// line.
func Summary(message string) string {
	message = strings.TrimSpace(message)
	if strings.HasPrefix(message, "Traceback (most recent call last)") {
		return message[strings.LastIndexByte(message, '\n')+1:]
	}
	line, _, _ := strings.Cut(message, "\n")
	return line
}

// nackChunk is the maximum number of jobs that a script puts back or buries.
const nackChunk = 500

// Nack puts jobs back. It returns how many of them were still in their flight. Repeating it does nothing.
func (c *Claim) Nack(ctx context.Context, nacks ...Nack) (int, error) {
	return c.runInParts(ctx, c.registry.db.Scripts.Nack, len(nacks), func(from, to int) []any {
		rule := c.Journal()
		args := []any{c.Instance, c.fence, rule.Bounds()}
		for _, n := range nacks[from:to] {
			text, line := KeptError(n.Error), ""
			if run := n.Run(); run != nil {
				line = rule.Line(run)
			}
			kind := string(n.Kind)
			switch {
			case n.Kind == Postpone && n.Limited:
				kind = "limited"
			case n.Kind == Postpone && n.Group:
				kind = "group"
			}
			args = append(args, n.Flight, n.ID, kind, n.RetryCount, max(0, n.Delay.Microseconds()), text, line)
		}
		return args
	})
}

// Bury ends jobs that have no retries left or have expired, by their policies. It returns how many of them were
// still in their flight. Repeating it does nothing.
func (c *Claim) Bury(ctx context.Context, burials ...Burial) (int, error) {
	return c.runInParts(ctx, c.registry.db.Scripts.Bury, len(burials), func(from, to int) []any {
		rule := c.Journal()
		args := []any{c.Instance, c.fence, rule.Bounds()}
		for _, b := range burials[from:to] {
			text := KeptError(b.Error)
			args = append(args, b.Flight, b.ID, b.verdictArg(), b.RetryCount, text, rule.Line(b.Run()))
		}
		return args
	})
}

// runInParts runs a script until it has handled all n jobs. Redis serves no other client during a script. Therefore
// a script gets at most nackChunk jobs, and may handle fewer; it answers how many of the jobs it found in
// their flights, and how many it has handled. args returns the script's arguments for a range of the jobs.
func (c *Claim) runInParts(ctx context.Context, script *redisdb.Script, n int, args func(from, to int) []any) (total int, err error) {
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

// twoNumbers reads an answer that consists of two integers.
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
