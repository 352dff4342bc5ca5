package runner

import (
	"math"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// flights holds popped jobs that are neither done nor back in Redis.
//
//	                                 .--> done -----> its ack is queued: closed
//	pop --> waiting --> batch of a --+--> failed ---> nack or burial, in Redis: closed
//	           ^        lane         '--> not begun
//	           |                              |
//	           +---------- put back ----------'
//	           '--> the queue is paused, or all lanes are in slow calls: returned to Redis: closed
type flights struct {
	waiting []flight      // jobs that no lane has
	open    map[int64]int // number of open jobs by flight, including jobs that no handler gets
	// answered has the open flights with a queued answer. All their acks name ids. An ack of all the rest of a flight
	// could overtake an answer on its way, and would end its job without the answer.
	answered map[int64]bool
	unknown  int64 // an unknown flight in the last pop's answer; 0 = none
}

// noPlace is the place of jobs that do not follow each other in their pop. It stays below 0 when places are added to it.
const noPlace = math.MinInt32

// flight is a part of a pop.
type flight struct {
	number int64
	popped time.Time // by Redis's clock
	place  int       // of the first job within the pop
	jobs   []lowkiq.Job
}

// add adds the jobs of a pop. Jobs in a form of a later release are not handled and keep the flight open.
func (f *flights) add(p protocol.Popped) {
	if n := len(p.Jobs) + len(p.Later); n > 0 {
		f.open[p.Flight] = n
	}
	if len(p.Jobs) > 0 {
		f.waiting = append(f.waiting, flight{p.Flight, p.Now, 0, p.Jobs})
	}
}

// batchLen returns how many of the first jobs make a batch of at most size jobs. A job that has failed goes alone. Another job of
// its batch may have caused the failure, and would do so again.
func batchLen(jobs []lowkiq.Job, size int) int {
	for i := range jobs[:min(size, len(jobs))] {
		if jobs[i].RetryCount >= 0 {
			return max(1, i)
		}
	}
	return min(size, len(jobs))
}

// takeBatch takes a batch of at most size jobs of the first waiting flight.
func (f *flights) takeBatch(size int) (part flight) {
	first := &f.waiting[0]
	part = *first
	n := batchLen(first.jobs, size)
	part.jobs = first.jobs[:n:n]
	first.jobs, first.place = first.jobs[n:], first.place+n
	if len(first.jobs) == 0 {
		f.waiting = f.waiting[1:]
	}
	return part
}

// putBack returns a batch that no handler has seen to the waiting jobs.
func (f *flights) putBack(batch *lowkiq.Batch, l *lane) {
	f.waiting = append([]flight{{batch.Flight, l.popped, l.place, batch.Jobs}}, f.waiting...)
}

// removeAll removes all waiting jobs, and returns the nacks that put them back to the head of the shard's line without a retry.
func (f *flights) removeAll() (nacks []protocol.Nack) {
	for _, part := range slices.Backward(f.waiting) { // the job that goes back last is first in line
		for _, job := range slices.Backward(part.jobs) {
			nacks = append(nacks, protocol.Nack{Flight: part.number, ID: job.ID, Kind: protocol.Return})
		}
	}
	f.waiting = nil
	return nacks
}

// removeHeld removes waiting jobs that are held, and returns the nacks that put them back until they are released.
func (f *flights) removeHeld(by *rules.Held) (nacks []protocol.Nack) {
	for _, part := range f.removeMatching(math.MaxInt, by.Holds) {
		nacks = append(nacks, protocol.Nack{Flight: part.number, ID: part.jobs[0].ID, Kind: protocol.Hold})
	}
	return nacks
}

// removeMatching removes waiting jobs that satisfy is, at most maxJobs of them. It returns each as a part of its own.
func (f *flights) removeMatching(maxJobs int, is func(id string) bool) (parts []flight) {
	var left []flight
	for _, part := range f.waiting {
		from := 0
		keep := func(to int) { // a job of a flight is identified by its place
			if from < to {
				left = append(left, flight{part.number, part.popped, part.place + from, part.jobs[from:to:to]})
			}
			from = to + 1
		}
		for i, job := range part.jobs {
			if len(parts) < maxJobs && is(job.ID) {
				parts = append(parts, flight{part.number, part.popped, part.place + i, part.jobs[i : i+1 : i+1]})
				keep(i)
			}
		}
		keep(len(part.jobs))
	}
	if len(parts) > 0 {
		f.waiting = left
	}
	return parts
}

// closeJobs closes n jobs of a flight. It returns whether these were the rest.
func (f *flights) closeJobs(number int64, n int) (ended bool) {
	if f.open[number] -= n; f.open[number] > 0 {
		return false
	}
	delete(f.open, number)
	delete(f.answered, number)
	return true
}

// countBatches returns how many batches wait; see batchLen.
func (f *flights) countBatches(size int) (n int) {
	if size == 1 {
		return f.countJobs()
	}
	for _, part := range f.waiting {
		for jobs := part.jobs; len(jobs) > 0; jobs = jobs[batchLen(jobs, size):] {
			n++
		}
	}
	return n
}

// countJobs returns how many jobs wait.
func (f *flights) countJobs() (n int) {
	for _, part := range f.waiting {
		n += len(part.jobs)
	}
	return n
}

// isWaiting reports whether an id waits for a lane.
func (f *flights) isWaiting(id string) bool {
	return slices.ContainsFunc(f.waiting, func(part flight) bool {
		return slices.ContainsFunc(part.jobs, func(job lowkiq.Job) bool { return job.ID == id })
	})
}

// compareOpen looks for a flight that is open in Redis, by a pop's answer, and unknown here. A single answer
// proves nothing, because an ack may overtake it. Two such answers in a row are a mismatch.
func (f *flights) compareOpen(open []int64, acks *acks) (strange, mismatch bool) {
	before := f.unknown
	f.unknown = 0
	for _, number := range open {
		if _, known := f.open[number]; !known && !acks.mayHave(number) && (f.unknown == 0 || number < f.unknown) {
			f.unknown = number
		}
	}
	return f.unknown != 0, f.unknown != 0 && f.unknown == before
}
