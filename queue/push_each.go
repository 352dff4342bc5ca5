package queue

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/lowkiq/lowkiq"
)

// When many callers push one job each, a commit has a job or two for each of many
// shards. One script for all of them spares Redis most of the work.
const (
	eachJobs   = 3   // most jobs of a shard that are pushed this way
	eachShards = 4   // least shards for which it pays
	eachCalls  = 200 // most jobs of one such script
)

// pushEach stores what it can of small chunks and returns the chunks that are left: the
// large ones, and the ids that were not fresh, in push order.
func (q *Queue) pushEach(ctx context.Context, chunks []*chunk, jobs []lowkiq.Push, results []Result) []*chunk {
	if q.registry.db.Sharded || len(chunks) > 0 && chunks[0].coalesces != "" {
		return chunks
	}
	var few, left []*chunk
	for _, ch := range chunks {
		if len(ch.jobs) <= eachJobs && ch.next == nil && formOf(ch.jobs, jobs) != "m" {
			few = append(few, ch)
		} else {
			left = append(left, ch)
		}
	}
	if len(few) < eachShards {
		return chunks
	}
	for len(few) > 0 {
		n, size := 0, 0
		for n < len(few) && size+len(few[n].jobs) <= eachCalls {
			size += len(few[n].jobs)
			n++
		}
		left = append(left, q.each(ctx, few[:n], jobs, results)...)
		few = few[n:]
	}
	return left
}

// each runs the script for some chunks and returns those that have jobs left.
func (q *Queue) each(ctx context.Context, chunks []*chunk, jobs []lowkiq.Push, results []Result) (left []*chunk) {
	var keys []string
	var args []any
	for _, ch := range chunks {
		k := &q.shards[ch.shard].keys
		for _, i := range ch.jobs {
			keys = append(keys, k.Tag)
			form, tail := single(&jobs[i])
			args = append(args, &jobs[i].ID, form, tail)
		}
	}
	reply, err := run(ctx, q.registry.db, q.registry.db.Scripts.PushEach, keys, args...)
	codes, _ := reply.(string)
	if err == nil && len(codes) != len(keys) {
		err = fmt.Errorf("push answered %.50v for %d jobs", reply, len(keys))
	}
	for _, ch := range chunks {
		rest := ch.jobs[:0]
		for _, i := range ch.jobs {
			switch {
			case err != nil:
				results[i].Err = err
			case codes[0] == 'x':
				rest = append(rest, i)
				fallthrough
			default:
				codes = codes[1:]
			}
		}
		if ch.jobs = rest; len(rest) > 0 {
			left = append(left, ch)
		}
	}
	return left
}

// single gives a job's form and the tail of its record; see lua/push.lua.
func single(job *lowkiq.Push) (form, tail string) {
	buf := make([]byte, 0, 8+len(job.Payload))
	if job.Score == nil {
		form, buf = "a", append(buf, 0, 0)
	} else {
		form, buf = "e", binary.BigEndian.AppendUint64(buf, math.Float64bits(*job.Score))
	}
	buf = append(buf, job.Payload...)
	return form, unsafe.String(unsafe.SliceData(buf), len(buf))
}
