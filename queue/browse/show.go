package browse

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// listedState in an answer means that the job is in the state of the list where it was found.
const listedState = "listed"

// showFields is how many values lua/show.lua answers per job.
const showFields = 8

// extent bounds how much of each job is read.
type extent struct {
	bytes    int // bytes of payloads
	payloads int // payloads of a crowded job
	err      int // bytes of the error
}

var (
	figuresExtent   = extent{err: 2048}                                                                // no payloads
	listExtent      = extent{bytes: cutBytes, payloads: 4, err: 2048}                                  // for a job in a list
	beginningExtent = extent{bytes: lowkiq.MaxPayloadBytes, payloads: BeginningPayloads, err: 8 << 10} // for a single job
)

// memoryFor returns the maximum memory of n jobs of this extent, as Redis sends them and as they
// are answered. Text may be escaped, and bytes are answered in base64.
func (e extent) memoryFor(n int) int64 {
	return int64(n) * int64(bytesOfShown+e.err+3*e.bytes+e.payloads*bytesOfPayload)
}

// memoryOf returns the memory of jobs.
func memoryOf(jobs []Listed) (n int64) {
	for i := range jobs {
		n += bytesOfShown + int64(len(jobs[i].Error))
		for _, p := range jobs[i].Payloads {
			n += bytesOfPayload + 3*int64(len(p.Data)+len(p.Header))
		}
	}
	return n
}

// Memory of a job besides its error and its payloads, and of a payload besides its bytes.
const (
	bytesOfShown   = 1 << 10
	bytesOfPayload = 256
)

// readListed reads jobs in the order of found, with payloads and errors up to the extent. A job
// that is gone has no state. The memory account of ctx pays for the jobs.
func (j *Jobs) readListed(ctx context.Context, state State, of extent, found []candidate) ([]Listed, error) {
	most := of.memoryFor(len(found))
	if err := memory.Take(ctx, most); err != nil {
		return nil, err
	}
	jobs := make([]Listed, len(found))
	left := map[*protocol.Shard][]int{} // indexes of found that are not read yet
	for i, c := range found {
		s := j.shards[c.shard]
		left[s] = append(left[s], i)
	}
	for len(left) > 0 {
		var calls []*redisdb.Call
		var shards []*protocol.Shard
		for s, todo := range left {
			calls = append(calls, showCall(s, state, of, found, todo[:min(len(todo), adminChunk)]))
			shards = append(shards, s)
		}
		runInPipelines(ctx, j.db, calls)
		for i, s := range shards {
			n, err := decodeShown(calls[i], left[s], found, jobs)
			if err != nil {
				return nil, fmt.Errorf("shard %s: %w", s, err)
			}
			if left[s] = left[s][n:]; len(left[s]) == 0 {
				delete(left, s)
			}
		}
	}
	memory.Give(ctx, most-memoryOf(jobs))
	return jobs, j.showProgress(ctx, jobs)
}

// showProgress adds the progress of jobs in flight.
func (j *Jobs) showProgress(ctx context.Context, jobs []Listed) error {
	byShard := map[int][]int{} // indexes of jobs
	for i := range jobs {
		if jobs[i].State == StateInFlight {
			byShard[jobs[i].Shard] = append(byShard[jobs[i].Shard], i)
		}
	}
	var cmds []redisdb.Cmd
	var of [][]int
	for shard, places := range byShard {
		cmd := redisdb.Cmd{"HMGET", j.shards[shard].Keys().Progress}
		for _, i := range places {
			cmd = append(cmd, jobs[i].ID)
		}
		cmds, of = append(cmds, cmd), append(of, places)
	}
	replies, err := j.db.Pipeline(ctx, "read progress of "+j.q.Name, cmds...)
	if err != nil {
		return err
	}
	for n, reply := range replies {
		for k, text := range redisdb.Texts(reply) {
			jobs[of[n][k]].setProgress(text)
		}
	}
	return nil
}

func showCall(s *protocol.Shard, state State, of extent, found []candidate, todo []int) *redisdb.Call {
	from := "waiting"
	switch {
	case state == StateMorgue:
		from = "morgue"
	case of.bytes == 0 && found[todo[0]].state != "": // known from its list
		from = listedState
	}
	args := []any{from, of.bytes, scriptBytes, of.payloads, of.err}
	for _, i := range todo {
		args = append(args, found[i].id)
	}
	return &redisdb.Call{Script: s.DB().Scripts.Show, Keys: s.Keys().For(s.DB().Scripts.Show), Args: args}
}

// decodeShown decodes the answer for the first jobs of todo and returns how many jobs it has.
func decodeShown(answer *redisdb.Call, todo []int, found []candidate, jobs []Listed) (n int, err error) {
	if answer.Err != nil {
		return 0, answer.Err
	}
	r, ok := answer.Reply.([]any)
	if !ok || len(r) == 0 || len(r)%showFields != 0 || len(r)/showFields > len(todo) {
		return 0, fmt.Errorf("show answered %d values for %d jobs", len(r), len(todo))
	}
	for ; len(r) > 0; r = r[showFields:] {
		i := todo[n]
		jobs[i] = decodeOne(found[i], r[:showFields])
		n++
	}
	return n, nil
}

// decodeOne decodes {state, flight, since, parked, head, error, payloads, bytes}.
func decodeOne(c candidate, r []any) Listed {
	text := func(i int) string { s, _ := r[i].(string); return s }
	number := func(i int) int { n, _ := r[i].(int64); return int(n) }
	job := Listed{Job: lowkiq.Job{ID: c.id}, Shard: c.shard, State: State(text(0)),
		Flight: int64(number(1)), Since: redisdb.Micros(r[2]), Parked: number(3), Bytes: number(7)}
	switch job.State {
	case "":
		return job
	case listedState:
		job.State = c.state
	}
	if text(4) == "" {
		return job.withSingle(text(6))
	}
	head, err1 := packed.HeadWords(text(4)[0], strings.TrimSuffix(text(4)[1:], "\n"))
	payloads, callers, shown, err2 := cutPayloads(text(6))
	if err1 != nil || err2 != nil {
		return job.asDamaged(text(6))
	}
	job.RetryCount, job.PerformAt, job.WaitingSince, job.Count, job.Error, job.Payloads = int(head[0]), microsTime(head[1]), packed.Since(head), int(head[2]), text(5), payloads
	job.Callers = callers
	job.Cut = shown < job.Bytes || len(job.Payloads) < job.Count || int64(len(job.Error)) < head[4]
	return job
}

// withSingle completes a fresh job with a single payload.
func (job Listed) withSingle(record string) Listed {
	before := 10
	if strings.HasPrefix(record, "e") {
		before = 16
	}
	before = min(before, len(record))
	stored := record[before:]
	fresh, _, err := packed.Decode(job.ID, record[:before], nil)
	if err == nil {
		var called bool
		if called, err = openCut(stored, job.Bytes, &fresh.Payloads[0]); called {
			fresh.Callers = 1
		}
	}
	if err != nil {
		return job.asDamaged(record)
	}
	job.Job, job.Count = fresh, 1
	job.Cut = len(stored) < job.Bytes
	return job
}

// openCut decodes the beginning of a payload, where bytes is the length of the stored payload. A
// payload that is cut off within its headers shows nothing.
func openCut(stored string, bytes int, p *lowkiq.Payload) (called bool, err error) {
	called, err = packed.Open(stored, p)
	if err != nil && len(stored) < bytes {
		p.Header, p.Data = "", nil
		return false, nil
	}
	return called, err
}

// asDamaged marks a job with an unreadable record; record is its beginning.
func (job Listed) asDamaged(record string) Listed {
	job.Damaged, job.RetryCount = true, -1
	job.Error = fmt.Sprintf("%v: %.40q; check --repair moves it aside", packed.ErrDamaged, record)
	if packed.IsLater(record) {
		job.Damaged, job.Error = false, fmt.Sprintf("%v, form %q: this release leaves it alone", packed.ErrLater, record[0])
	}
	return job
}

// cutPayloads decodes a sequence of "score length:payload". The last payload may be cut off.
func cutPayloads(text string) (payloads []lowkiq.Payload, callers, bytes int, err error) {
	for text != "" {
		head, rest, ok := strings.Cut(text, ":")
		score, length, ok2 := strings.Cut(head, " ")
		if !ok || !ok2 {
			break // cut off before the payload began
		}
		n, err1 := strconv.Atoi(length)
		value, err2 := strconv.ParseFloat(score, 64)
		if err1 != nil || err2 != nil || n < 0 {
			return nil, 0, 0, packed.ErrDamaged
		}
		data := rest[:min(n, len(rest))]
		p := lowkiq.Payload{Score: value}
		called, err := openCut(data, n, &p)
		if err != nil {
			return nil, 0, 0, err
		}
		if called {
			callers++
		}
		payloads = append(payloads, p)
		bytes += len(data)
		text = rest[len(data):]
	}
	packed.SortPayloads(payloads)
	return payloads, callers, bytes, nil
}
