package protocol

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/lowkiq/lowkiq"
)

// When many callers push one job each, a commit has a job or two for each of many shards. A single script
// for all of them (lua/push_each.lua) saves Redis most of the work. It stores only new ids.
const (
	maxEachJobs   = 3   // jobs of a shard that are pushed this way
	minEachShards = 4   // minimum number of shards that makes the script cheaper
	maxEachTotal  = 200 // jobs of a script
)

// pushSmallChunks stores the new ids of small chunks with a script for many shards. It returns the chunks
// that are left: the large chunks, and the small chunks with the jobs whose ids were not new, in push order.
// It does nothing in a Redis Cluster, where a script sees one shard, or if pushes coalesce.
func (q *Queue) pushSmallChunks(ctx context.Context, chunks []*chunk, jobs []lowkiq.Push, results []Result) []*chunk {
	if q.registry.db.Sharded {
		return chunks
	}
	var small, left []*chunk
	for _, ch := range chunks {
		if len(ch.jobs) <= maxEachJobs && ch.next == nil && ch.mode == "" && pushMode(ch.jobs, jobs) != "m" {
			small = append(small, ch)
		} else {
			left = append(left, ch)
		}
	}
	if len(small) < minEachShards {
		return chunks
	}
	for len(small) > 0 {
		n, size := 0, 0
		for n < len(small) && size+len(small[n].jobs) <= maxEachTotal {
			size += len(small[n].jobs)
			n++
		}
		left = append(left, q.runPushEach(ctx, small[:n], jobs, results)...)
		small = small[n:]
	}
	return left
}

// runPushEach runs the script for some chunks. It returns the chunks that have jobs left, with these jobs
// only. The script leaves a job if its id is not new or the queue is deleted. If the script fails, all jobs
// have its error and none is left.
func (q *Queue) runPushEach(ctx context.Context, chunks []*chunk, jobs []lowkiq.Push, results []Result) (left []*chunk) {
	var keys []string
	var args []any
	for _, ch := range chunks {
		k := &q.shards[ch.shard].keys
		for _, i := range ch.jobs {
			keys = append(keys, k.Tag)
			form, tail := recordTail(&jobs[i])
			args = append(args, &jobs[i].ID, form, tail)
		}
	}
	reply, err := runScript(ctx, q.registry.db, q.registry.db.Scripts.PushEach, keys, args...)
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
			case codes[0] == 'x': // left for push.lua
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

// recordTail returns the form of a job's record and the end of the record, after id and time; see
// lua/push.lua.
func recordTail(job *lowkiq.Push) (form, tail string) {
	buf := make([]byte, 0, 8+len(job.Payload))
	if job.Score == nil {
		form, buf = "a", append(buf, 0, 0)
	} else {
		form, buf = "e", binary.BigEndian.AppendUint64(buf, math.Float64bits(*job.Score))
	}
	buf = append(buf, job.Payload...)
	return form, unsafe.String(unsafe.SliceData(buf), len(buf))
}
