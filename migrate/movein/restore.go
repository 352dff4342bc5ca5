package movein

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq/migrate/rubyqueue"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// restoreJob turns a job of the new queue into a job of Ruby's. The parts that were moved here come back as the old Redis keeps
// them. Payloads that were pushed since become what [converter.toRuby] makes of them.
func (m *Mover) restoreJob(k *Entry, kept []*rubyqueue.Entry) (*rubyqueue.Job, error) {
	if k.Err != nil {
		return nil, k.Err
	}
	c := converter{m.Form, m.Limits, m.DueNow}
	jobs := make([]rubyqueue.Job, len(kept))
	for i, e := range kept {
		jobs[i] = rubyqueue.SettleEntry(e)
	}
	payloads, err := c.restorePayloads(k.Payloads, jobs)
	if err != nil {
		return nil, err
	}
	at := k.Due
	if k.Morgue {
		at = k.Buried
	}
	job := &rubyqueue.Job{At: float64(at) / 1e6, Retries: float64(k.RetryCount), Payloads: payloads}
	if k.Error != "" {
		job.Error = &k.Error
	}
	if len(jobs) > 0 {
		last := jobs[len(jobs)-1]
		if keepsTime(last.At, at, k.Morgue) {
			job.At = last.At
		}
		if keepsError(last.Error, k.Error) {
			job.Error = last.Error
		}
	}
	return job, nil
}

// keepsTime reports whether a job that was moved with the time was gets it back, though the new queue has at, in microseconds.
//
// Both are the same time if they differ by the rounding alone. An import moves a due time that has passed, or that is none,
// to the present, and so it does with a burial that was to come. These are given back as they were. A due time in the future
// was set by the new queue.
func keepsTime(was float64, at int64, morgue bool) bool {
	moved, err := toMicros(was)
	switch {
	case err == nil && moved-at <= 1 && at-moved <= 1:
		return true
	case morgue:
		return err == nil && moved > at
	}
	return (err != nil || moved < at) && at <= time.Now().UnixMicro()
}

// keepsError reports whether text is what the new queue stores of the error that a job was moved with.
func keepsError(was *string, text string) bool {
	if was == nil {
		return text == ""
	}
	return protocol.KeptError(*was) == text
}

// restorePayloads returns the payloads of a job for Ruby. A payload that came from kept jobs gets its old bytes and scores back.
func (c converter) restorePayloads(payloads []Payload, kept []rubyqueue.Job) ([]rubyqueue.Payload, error) {
	originals := c.groupOriginals(kept)
	var restored payloadSet
	for i, p := range payloads {
		were := originals[string(p.Data)]
		if len(were) == 0 {
			data, err := c.toRuby(&p)
			if err != nil {
				return nil, fmt.Errorf("payload %d cannot be Ruby's: %w", i+1, err)
			}
			restored.add(rubyqueue.Payload{Score: p.Score, Data: data})
			continue
		}
		minScore := slices.MinFunc(were, func(a, b rubyqueue.Payload) int { return cmp.Compare(a.Score, b.Score) }).Score
		for _, w := range were {
			if w.Score == minScore {
				w.Score = min(w.Score, p.Score) // a later push may have had a smaller score
			}
			restored.add(w)
		}
	}
	return restored.payloads, nil
}

// groupOriginals returns the payloads of kept jobs by the data that they have in the new queue. Several payloads of Ruby's may
// come to the same data.
func (c converter) groupOriginals(kept []rubyqueue.Job) map[string][]rubyqueue.Payload {
	originals := map[string][]rubyqueue.Payload{}
	for _, job := range kept {
		for _, p := range job.Payloads {
			if converted, _, err := c.convertPayload(p.Data); err == nil {
				data := string(converted.Data)
				originals[data] = append(originals[data], p)
			}
		}
	}
	return originals
}

// payloadSet holds payloads in the order of their addition. Of equal data it keeps the smallest score.
type payloadSet struct {
	payloads []rubyqueue.Payload
	index    map[string]int // by data
}

func (s *payloadSet) add(p rubyqueue.Payload) {
	if i, there := s.index[string(p.Data)]; there {
		s.payloads[i].Score = min(s.payloads[i].Score, p.Score)
		return
	}
	if s.index == nil {
		s.index = map[string]int{}
	}
	s.index[string(p.Data)] = len(s.payloads)
	s.payloads = append(s.payloads, p)
}
