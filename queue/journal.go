package queue

import "github.com/lowkiq/lowkiq/internal/journal"

// Journal is the rule by which the claim's shard keeps lines of runs.
func (c *Claim) Journal() *journal.Rule {
	if rule := c.journal.Load(); rule != nil {
		return rule
	}
	return &journal.Default
}

// SetJournal changes it. It may be called beside all other methods.
func (c *Claim) SetJournal(rule journal.Rule) { c.journal.Store(&rule) }

// Run is that of a job which goes back; nil: it was none.
func (n *Nack) Run() *journal.Run {
	if !n.Cancelled && n.Kind != Retry && (n.Kind != Postpone || n.Limited) {
		return nil
	}
	end := journal.Failed
	switch {
	case n.Cancelled:
		end = journal.Cancelled
	case n.Kind == Postpone:
		end = journal.Postponed
	}
	return &journal.Run{ID: n.ID, Verdict: end, RetryCount: n.RetryCount, Ran: n.Ran, Error: Summary(cutError(n.Error))}
}

// Run is that of a job which is out of retries or time.
func (b *Burial) Run() *journal.Run {
	end := journal.Exhausted
	switch {
	case b.Cancelled:
		end = journal.Cancelled
	case b.Expired > 0:
		end = journal.Expired
	}
	return &journal.Run{ID: b.ID, Verdict: end, RetryCount: b.RetryCount, Ran: b.Ran, Error: Summary(cutError(b.Error))}
}
