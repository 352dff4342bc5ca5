package protocol

import "github.com/lowkiq/lowkiq/internal/store/journal"

// Journal returns the rule for the lines of runs that the shard keeps.
func (c *Claim) Journal() *journal.Rule {
	if rule := c.journal.Load(); rule != nil {
		return rule
	}
	return &journal.Default
}

// SetJournal changes the rule. It may be called at any time, also while other methods run.
func (c *Claim) SetJournal(rule journal.Rule) { c.journal.Store(&rule) }

// Run returns the run of a job that is put back, for the journal. It returns nil if the job had no run that the
// journal keeps.
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
	return &journal.Run{ID: n.ID, Verdict: end, RetryCount: n.RetryCount, Ran: n.Ran, Error: Summary(KeptError(n.Error))}
}

// Run returns the run of a job that is out of retries or time, for the journal.
func (b *Burial) Run() *journal.Run {
	end := journal.Exhausted
	switch {
	case b.Cancelled:
		end = journal.Cancelled
	case b.Expired > 0:
		end = journal.Expired
	}
	return &journal.Run{ID: b.ID, Verdict: end, RetryCount: b.RetryCount, Ran: b.Ran, Error: Summary(KeptError(b.Error))}
}
