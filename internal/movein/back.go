package movein

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lowkiq/lowkiq/internal/rubyqueue"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/transfer"
)

// ErrBusy says that the new queue has something in flight.
var ErrBusy = errors.New("the new queue has jobs in flight: pause it, and wait for its handlers")

// passes is how often what was pushed in the middle is looked for.
const passes = 20

// Back gives to Ruby what the new queue has: what was moved, as it was, and what was pushed there since. It may be repeated after
// any error, and after a process that was killed: each job is at one side alone at any time, or written down in the old Redis.
//
// A job is written down in the old Redis, where no process of Ruby's looks; taken out of the new queue, if it is as it was read,
// which remembers the number under which it is written down; given to Ruby. One that is written down without that memory
// was not taken out, and is written down anew.
func (m *Mover) Back(ctx context.Context, q *queue.Queue) (back Counts, err error) {
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
	if err := m.Agree(ctx); err != nil {
		return back, err
	}
	run, err := m.Old.Begin(ctx)
	if err != nil {
		return back, err
	}
	var came Counts
	if err := m.inherit(ctx, run, &came); err != nil {
		return back, err
	}
	x, err := transfer.NewExport(ctx, q, m.Old.Name())
	if err != nil {
		return back, err
	}
	r := returning{Mover: m, x: x, back: &back, parts: map[string]int{}}
	for range passes {
		if err := r.finish(ctx); err != nil {
			return back, err
		}
		had := r.moves
		for _, morgue := range []bool{false, true} {
			if err := transfer.Each(ctx, q, morgue, func(jobs []transfer.Kept) error { return r.bring(ctx, jobs) }); err != nil {
				return back, err
			}
		}
		if r.moves == had {
			break
		}
	}
	if err := r.finish(ctx); err != nil {
		return back, err
	}
	if err := m.End(ctx); err != nil || m.LeftCount() > 0 {
		return back, err
	}
	return back, m.Old.SetWay(ctx, rubyqueue.Way{})
}

// SurveyBack reads what would go back, and changes nothing.
func (m *Mover) SurveyBack(ctx context.Context, q *queue.Queue) (found Report, err error) {
	found.Changed = map[string]int{}
	r := returning{Mover: m, back: &found.Counts}
	for _, morgue := range []bool{false, true} {
		err = transfer.Each(ctx, q, morgue, func(jobs []transfer.Kept) error {
			_, err := r.ruby(ctx, jobs)
			return err
		})
		if err != nil {
			break
		}
	}
	found.Left = m.LeftCount()
	return found, err
}

// returning is a way back.
type returning struct {
	*Mover
	x     *transfer.Export
	back  *Counts
	moves int            // jobs that were taken out, or were to be
	parts map[string]int // payloads of those that are taken out piece by piece
}

// finish brings to an end what an earlier process has written down: what was taken out goes to Ruby, unless more of it is
// there, which goes with it; what was not is dropped.
func (r *returning) finish(ctx context.Context) error {
	for last := int64(0); ; {
		staged, err := r.Old.Staged(ctx, last)
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
			} else if there && !r.stays(s.ID, s.Morgue) {
				continue
			}
			if err := r.publish(ctx, s); err != nil {
				return err
			}
		}
	}
}

// publish gives to Ruby what is written down under a number and is taken out.
func (r *returning) publish(ctx context.Context, s rubyqueue.Staged) error {
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

// bring takes jobs back.
func (r *returning) bring(ctx context.Context, jobs []transfer.Kept) error {
	ruby, err := r.ruby(ctx, jobs)
	if err != nil {
		return err
	}
	var going []transfer.Kept
	var of []rubyqueue.Job
	for i := range jobs {
		if ruby[i] == nil {
			continue
		}
		if err := r.stage(ctx, &jobs[i], ruby[i]); err != nil {
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
			if err := r.publish(ctx, rubyqueue.Staged{Number: k.Number, ID: k.ID, Morgue: k.Morgue}); err != nil {
				return err
			}
			name := leftName(k.ID, k.Morgue)
			r.back.add(k.Morgue, max(r.parts[name], len(of[i].Payloads)))
			delete(r.parts, name)
		case transfer.Part:
			r.moves++ // the next pass has the rest
			name := leftName(k.ID, k.Morgue)
			r.parts[name] = max(r.parts[name], len(of[i].Payloads))
		case transfer.Changed:
			r.moves++
		case transfer.InFlight:
			return fmt.Errorf("%w (%q)", ErrBusy, k.ID)
		case transfer.Held:
			r.leave(&rubyqueue.Entry{ID: k.ID, Morgue: k.Morgue}, transfer.ErrHeld)
		}
	}
	r.progress(len(jobs))
	return nil
}

// stage writes a job down, together with what of it was taken out before.
func (r *returning) stage(ctx context.Context, k *transfer.Kept, job *rubyqueue.Job) error {
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

func (c *Counts) add(morgue bool, payloads int) {
	if morgue {
		c.Morgue++
		c.MorguePayloads += payloads
		return
	}
	c.Jobs++
	c.Payloads += payloads
}

// ruby makes jobs of the new queue Ruby's; nil for those that stay.
func (r *returning) ruby(ctx context.Context, jobs []transfer.Kept) ([]*rubyqueue.Job, error) {
	var ids []string
	var places []int
	for i := range jobs {
		if !r.stays(jobs[i].ID, jobs[i].Morgue) {
			ids, places = append(ids, jobs[i].ID), append(places, i)
		}
	}
	all := make([]*rubyqueue.Job, len(jobs))
	if len(ids) == 0 {
		return all, nil
	}
	kept, err := r.Old.Kept(ctx, ids, jobs[0].Morgue, r.Limits.Payloads)
	if err != nil {
		return nil, err
	}
	for i, place := range places {
		k := &jobs[place]
		job, err := r.restore(&k.Entry, kept[i])
		if err != nil {
			r.leave(&rubyqueue.Entry{ID: k.ID, Morgue: k.Morgue}, err)
			continue
		}
		all[place] = job
		if r.x == nil {
			r.back.add(k.Morgue, len(job.Payloads))
		}
	}
	return all, nil
}

// restore makes a job of the new queue one of Ruby's. Where what was moved is kept, it is what it was: the bytes of payloads, scores,
// times that had passed, errors. What was pushed since is what [converter.rubys] makes of it.
func (m *Mover) restore(k *Entry, kept []*rubyqueue.Entry) (*rubyqueue.Job, error) {
	if k.Err != nil {
		return nil, k.Err
	}
	c := converter{m.Form, m.Limits, m.DueNow}
	old := map[string][]rubyqueue.Payload{} // by what they came to
	var last *rubyqueue.Job
	for _, e := range kept {
		job := rubyqueue.Settle(e)
		last = &job
		for _, p := range job.Payloads {
			if came, _, err := c.payload(p.Data); err == nil {
				old[string(came.Data)] = append(old[string(came.Data)], p)
			}
		}
	}
	at := k.Due
	if k.Morgue {
		at = k.Buried
	}
	job := &rubyqueue.Job{At: float64(at) / 1e6, Retries: float64(k.RetryCount)}
	if k.Error != "" {
		job.Error = &k.Error
	}
	if last != nil {
		was, err := micros(last.At)
		passed := (err != nil || was < at) && at <= time.Now().UnixMicro()
		same := err == nil && was-at <= 1 && at-was <= 1
		if !k.Morgue && passed || same || k.Morgue && was > at { // a burial that was to come is now
			job.At = last.At
		}
		if last.Error == nil && k.Error == "" || last.Error != nil && queue.KeptError(*last.Error) == k.Error {
			job.Error = last.Error
		}
	}
	places := map[string]int{}
	add := func(p rubyqueue.Payload) {
		if i, twice := places[string(p.Data)]; twice {
			job.Payloads[i].Score = min(job.Payloads[i].Score, p.Score)
			return
		}
		places[string(p.Data)] = len(job.Payloads)
		job.Payloads = append(job.Payloads, p)
	}
	for i, p := range k.Payloads {
		were := old[string(p.Data)]
		least := math.Inf(1)
		for _, w := range were {
			least = min(least, w.Score)
		}
		for _, w := range were {
			if w.Score == least {
				w.Score = min(w.Score, p.Score) // pushed again with a smaller one
			}
			add(w)
		}
		if len(were) > 0 {
			continue
		}
		data, err := c.rubys(&p)
		if err != nil {
			return nil, fmt.Errorf("payload %d cannot be Ruby's: %w", i+1, err)
		}
		add(rubyqueue.Payload{Score: p.Score, Data: data})
	}
	return job, nil
}
