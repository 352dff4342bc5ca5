package movein

import (
	"context"
	"errors"
	"fmt"

	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"
)

// ErrBusy means that the new queue has jobs in flight.
var ErrBusy = errors.New("the new queue has jobs in flight: pause it, and wait for its handlers")

// maxPasses is how often MoveBack looks for jobs that were pushed while it ran.
const maxPasses = 20

// MoveBack gives the jobs of the new queue to Ruby. Jobs that were moved here come back as they were, together with jobs
// that were pushed since. MoveBack may be repeated after any error, and after its process was killed.
//
// Every job passes through three steps. It is written down in the old Redis, where no process of Ruby's looks. It is taken
// out of the new queue, unless it has changed since it was read, and the new queue remembers the number of the written
// job. Then it is published to Ruby. So at any time a job is on one side alone, or is written down as well. A job that is
// written down while the new queue remembers no such number was not taken out yet. It is dropped and written down again.
func (m *Mover) MoveBack(ctx context.Context, q *protocol.Queue) (back Counts, err error) {
	defer func() {
		back.Left = m.LeftCount()
		if err != nil {
			m.source = ""
		}
	}()
	if n, err := transfer.Flights(ctx, q); err != nil || n > 0 {
		if err == nil {
			err = fmt.Errorf("%w (%d)", ErrBusy, n)
		}
		return back, err
	}
	if err := m.AgreeOnWay(ctx); err != nil {
		return back, err
	}
	run, err := m.Old.BeginRun(ctx)
	if err != nil {
		return back, err
	}
	var came Counts
	if err := m.inheritRun(ctx, run, &came); err != nil {
		return back, err
	}
	x, err := transfer.NewExport(ctx, q, m.Old.Name())
	if err != nil {
		return back, err
	}
	r := backMove{Mover: m, x: x, back: &back, parts: map[string]int{}}
	for range maxPasses {
		if err := r.finishStaged(ctx); err != nil {
			return back, err
		}
		had := r.moves
		for _, morgue := range []bool{false, true} {
			if err := transfer.Each(ctx, q, morgue, func(jobs []transfer.Kept) error { return r.bringBack(ctx, jobs) }); err != nil {
				return back, err
			}
		}
		if r.moves == had {
			break
		}
	}
	if err := r.finishStaged(ctx); err != nil {
		return back, err
	}
	if err := m.EndRun(ctx); err != nil || m.LeftCount() > 0 {
		return back, err
	}
	_, err = m.Old.SetWay(ctx, rubyqueue.Way{})
	return back, err
}

// SurveyBack counts the jobs that would go back, and changes nothing.
func (m *Mover) SurveyBack(ctx context.Context, q *protocol.Queue) (found Report, err error) {
	found.Changed = map[string]int{}
	r := backMove{Mover: m, back: &found.Counts}
	for _, morgue := range []bool{false, true} {
		err = transfer.Each(ctx, q, morgue, func(jobs []transfer.Kept) error {
			_, err := r.toRubyJobs(ctx, jobs)
			return err
		})
		if err != nil {
			break
		}
	}
	found.Left = m.LeftCount()
	return found, err
}

// backMove is a call of [Mover.MoveBack], or of [Mover.SurveyBack], which has no export.
type backMove struct {
	*Mover
	x     *transfer.Export
	back  *Counts
	moves int            // jobs that were taken out or found changed
	parts map[string]int // payload counts of jobs that are taken out piece by piece
}

// finishStaged ends the work of an earlier process. A job that was written down and taken out is published, unless more of
// it is in the new queue again: both go back together later. A job that was not taken out is dropped.
func (r *backMove) finishStaged(ctx context.Context) error {
	for last := int64(0); ; {
		staged, err := r.Old.ReadStaged(ctx, last)
		if err != nil || len(staged) == 0 {
			return err
		}
		for _, s := range staged {
			last = s.Number
			switch number, err := r.x.Number(ctx, s.ID, s.Morgue); {
			case err != nil:
				return err
			case number != s.Number:
				if err := r.Old.Unstage(ctx, s.Number); err != nil {
					return err
				}
				continue
			}
			if there, err := r.x.Has(ctx, s.ID, s.Morgue); err != nil {
				return err
			} else if there && !r.isLeft(s.ID, s.Morgue) {
				continue
			}
			if err := r.publishStaged(ctx, s); err != nil {
				return err
			}
		}
	}
}

// publishStaged gives to Ruby a job that is written down and was taken out.
func (r *backMove) publishStaged(ctx context.Context, s rubyqueue.Staged) error {
	kept, err := r.Old.KeptNumbers(ctx, s.ID, s.Morgue)
	if err == nil {
		err = r.Old.Publish(ctx, s)
	}
	if err == nil {
		err = r.Old.Forget(ctx, kept...)
	}
	if err != nil {
		return err
	}
	return r.x.Settle(ctx, transfer.Kept{Entry: Entry{ID: s.ID, Morgue: s.Morgue}})
}

// bringBack moves some jobs back.
func (r *backMove) bringBack(ctx context.Context, jobs []transfer.Kept) error {
	ruby, err := r.toRubyJobs(ctx, jobs)
	if err != nil {
		return err
	}
	var going []transfer.Kept
	var of []rubyqueue.Job
	for i := range jobs {
		if ruby[i] == nil {
			continue
		}
		if err := r.stageJob(ctx, &jobs[i], ruby[i]); err != nil {
			return err
		}
		going, of = append(going, jobs[i]), append(of, *ruby[i])
	}
	outcomes, err := r.x.Take(ctx, going)
	if err != nil {
		return err
	}
	for i, o := range outcomes {
		k := &going[i]
		switch o {
		case transfer.Out:
			r.moves++
			if err := r.publishStaged(ctx, rubyqueue.Staged{Number: k.Number, ID: k.ID, Morgue: k.Morgue}); err != nil {
				return err
			}
			name := leftName(k.ID, k.Morgue)
			r.back.addReturned(k.Morgue, max(r.parts[name], len(of[i].Payloads)))
			delete(r.parts, name)
		case transfer.Part:
			r.moves++ // the next pass brings the rest
			name := leftName(k.ID, k.Morgue)
			r.parts[name] = max(r.parts[name], len(of[i].Payloads))
		case transfer.Changed:
			r.moves++
		case transfer.InFlight:
			return fmt.Errorf("%w (%q)", ErrBusy, k.ID)
		case transfer.Held:
			r.recordLeft(&rubyqueue.Entry{ID: k.ID, Morgue: k.Morgue}, transfer.ErrHeld)
		}
	}
	r.reportProgress(len(jobs))
	return nil
}

// stageJob writes a job down. If a part of it is written down from an earlier pass, the rest joins that part under its
// number.
func (r *backMove) stageJob(ctx context.Context, k *transfer.Kept, job *rubyqueue.Job) error {
	before, err := r.x.Number(ctx, k.ID, k.Morgue)
	if err != nil {
		return err
	}
	if before > 0 {
		there, err := r.Old.HasStaged(ctx, before)
		if err != nil {
			return err
		}
		if there {
			k.Number = before
			return r.Old.Restage(ctx, before, k.ID, k.Morgue, *job)
		}
	}
	k.Number, err = r.Old.Stage(ctx, k.ID, k.Morgue, *job)
	return err
}

func (c *Counts) addReturned(morgue bool, payloads int) {
	if morgue {
		c.Morgue++
		c.MorguePayloads += payloads
		return
	}
	c.Jobs++
	c.Payloads += payloads
}

// toRubyJobs returns the jobs as Ruby has them, nil for a job that stays.
func (r *backMove) toRubyJobs(ctx context.Context, jobs []transfer.Kept) ([]*rubyqueue.Job, error) {
	var ids []string
	var places []int
	for i := range jobs {
		if !r.isLeft(jobs[i].ID, jobs[i].Morgue) {
			ids, places = append(ids, jobs[i].ID), append(places, i)
		}
	}
	all := make([]*rubyqueue.Job, len(jobs))
	if len(ids) == 0 {
		return all, nil
	}
	kept, err := r.Old.ReadKept(ctx, ids, jobs[0].Morgue, r.Limits.Payloads)
	if err != nil {
		return nil, err
	}
	for i, place := range places {
		k := &jobs[place]
		job, err := r.restoreJob(&k.Entry, kept[i])
		if err != nil {
			r.recordLeft(&rubyqueue.Entry{ID: k.ID, Morgue: k.Morgue}, err)
			continue
		}
		all[place] = job
		if r.x == nil {
			r.back.addReturned(k.Morgue, len(job.Payloads))
		}
	}
	return all, nil
}
