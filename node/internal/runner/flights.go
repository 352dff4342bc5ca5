package runner

import (
	"math"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// flights are the jobs that pops have brought and that are neither done nor back in Redis.
//
//	                                 .--> done -----> its ack is queued: closed
//	pop --> waiting --> batch of a --+--> failed ---> nack or burial, in Redis: closed
//	           ^        lane         '--> not begun
//	           |                              |
//	           +---------- put back ----------'
//	           '--> the queue is paused, or all lanes are in slow calls: returned to Redis: closed
type flights struct {
	waiting []flight      // no lane has them
	open    map[int64]int // by flight: jobs that are not closed, those that no handler gets included
	// said has those of open of which an answer was queued. Their acks name ids to the end: one of all
	// the rest could overtake an answer that is on its way, and end its job without it.
	said    map[int64]bool
	strange int64 // a flight in the last pop's answer that is unknown here; 0 = none
}

// noPlace is the place of jobs that did not come one after the other in their pop. Places are added to, so it is far below 0.
const noPlace = math.MinInt32

// flight is a part of one pop.
type flight struct {
	number int64
	popped time.Time // by Redis's clock
	place  int       // of the first job among those of the pop
	jobs   []lowkiq.Job
}

// add takes in what a pop has brought. What is not ours to read keeps the flight open.
func (f *flights) add(p queue.Popped) {
	if n := len(p.Jobs) + len(p.Later); n > 0 {
		f.open[p.Flight] = n
	}
	if len(p.Jobs) > 0 {
		f.waiting = append(f.waiting, flight{p.Flight, p.Now, 0, p.Jobs})
	}
}

// take takes up to most jobs of the first flight that waits.
func (f *flights) take(most int) (part flight) {
	first := &f.waiting[0]
	part = *first
	n := min(most, len(first.jobs))
	part.jobs = first.jobs[:n:n]
	first.jobs, first.place = first.jobs[n:], first.place+n
	if len(first.jobs) == 0 {
		f.waiting = f.waiting[1:]
	}
	return part
}

// putBack puts a batch back that no handler has seen.
func (f *flights) putBack(batch *lowkiq.Batch, t *turn) {
	f.waiting = append([]flight{{batch.Flight, t.popped, t.place, batch.Jobs}}, f.waiting...)
}

// returned takes out all that waits, to be put back to the head of the shard's line, no retry
// spent.
func (f *flights) returned() (nacks []queue.Nack) {
	for _, one := range slices.Backward(f.waiting) { // the last one back is the first in line
		for _, job := range slices.Backward(one.jobs) {
			nacks = append(nacks, queue.Nack{Flight: one.number, ID: job.ID, Kind: queue.Return})
		}
	}
	f.waiting = nil
	return nacks
}

// held takes out what waits and is held, to be put back until it is released.
func (f *flights) held(by *rules.Held) (nacks []queue.Nack) {
	for _, one := range f.cut(math.MaxInt, by.Holds) {
		nacks = append(nacks, queue.Nack{Flight: one.number, ID: one.jobs[0].ID, Kind: queue.Hold})
	}
	return nacks
}

// cut takes out most of those that wait, of which is says that it is about them. Each is a part of its own.
func (f *flights) cut(most int, is func(id string) bool) (parts []flight) {
	var left []flight
	for _, one := range f.waiting {
		from := 0
		keep := func(to int) { // jobs of a flight are told apart by their place in it
			if from < to {
				left = append(left, flight{one.number, one.popped, one.place + from, one.jobs[from:to:to]})
			}
			from = to + 1
		}
		for i, job := range one.jobs {
			if len(parts) < most && is(job.ID) {
				parts = append(parts, flight{one.number, one.popped, one.place + i, one.jobs[i : i+1 : i+1]})
				keep(i)
			}
		}
		keep(len(one.jobs))
	}
	if len(parts) > 0 {
		f.waiting = left
	}
	return parts
}

// close closes n jobs of a flight. It says whether those were the rest.
func (f *flights) close(number int64, n int) (ended bool) {
	if f.open[number] -= n; f.open[number] > 0 {
		return false
	}
	delete(f.open, number)
	delete(f.said, number)
	return true
}

// batches is how many batches of this size wait.
func (f *flights) batches(size int) (n int) {
	for _, one := range f.waiting {
		n += (len(one.jobs) + size - 1) / size
	}
	return n
}

// jobs is how many jobs wait.
func (f *flights) jobs() (n int) {
	for _, one := range f.waiting {
		n += len(one.jobs)
	}
	return n
}

// waits reports whether an id waits for a lane.
func (f *flights) waits(id string) bool {
	return slices.ContainsFunc(f.waiting, func(one flight) bool {
		return slices.ContainsFunc(one.jobs, func(job lowkiq.Job) bool { return job.ID == id })
	})
}

// compare looks for a flight that Redis has open, by a pop's answer, and that is unknown here. One
// answer proves nothing, because an ack may overtake it; two in a row are a mismatch.
func (f *flights) compare(open []int64, acks *acks) (strange, mismatch bool) {
	before := f.strange
	f.strange = 0
	for _, number := range open {
		if _, known := f.open[number]; !known && !acks.of(number) && (f.strange == 0 || number < f.strange) {
			f.strange = number
		}
	}
	return f.strange != 0, f.strange != 0 && f.strange == before
}
