package browse

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/packed"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// listedState stands for the state of a candidate's list.
const listedState = "listed"

// showFields is how many values lua/show.lua gives per job.
const showFields = 8

// show reads jobs, each one's payloads and error up to a bound, in the order of found. A job that
// is gone has no state.
func (j *Jobs) show(ctx context.Context, state State, cut int, found []candidate) ([]Listed, error) {
	jobs := make([]Listed, len(found))
	left := map[*queue.Shard][]int{} // indexes of found that are not read yet
	for i, c := range found {
		s := j.shards[c.shard]
		left[s] = append(left[s], i)
	}
	for len(left) > 0 {
		var calls []*redisdb.Call
		var shards []*queue.Shard
		for s, todo := range left {
			calls = append(calls, showCall(s, state, cut, found, todo[:min(len(todo), adminChunk)]))
			shards = append(shards, s)
		}
		runParts(ctx, j.db, calls)
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
	return jobs, j.showProgress(ctx, jobs)
}

// showProgress adds what was noted of jobs in flight.
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
			jobs[of[n][k]].progress(text)
		}
	}
	return nil
}

func showCall(s *queue.Shard, state State, cut int, found []candidate, todo []int) *redisdb.Call {
	from := "waiting"
	switch {
	case state == StateMorgue:
		from = "morgue"
	case cut == 0 && found[todo[0]].state != "": // a list has told
		from = listedState
	}
	args := []any{from, cut, scriptBytes}
	for _, i := range todo {
		args = append(args, found[i].id)
	}
	return &redisdb.Call{Script: s.DB().Scripts.Show, Keys: s.Keys().For(s.DB().Scripts.Show), Args: args}
}

// decodeShown reads the answer for the first of todo, and says how many those were.
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

// decodeOne reads {state, flight, since, parked, head, error, payloads, bytes}.
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
		return job.single(text(6))
	}
	head, err1 := packed.HeadWords(text(4)[0], strings.TrimSuffix(text(4)[1:], "\n"))
	payloads, shown, err2 := cutPayloads(text(6))
	if err1 != nil || err2 != nil {
		return job.damaged(text(6))
	}
	job.RetryCount, job.PerformAt, job.WaitingSince, job.Count, job.Error, job.Payloads = int(head[0]), microsTime(head[1]), packed.Since(head), int(head[2]), text(5), payloads
	job.Cut = shown < job.Bytes || len(job.Payloads) < job.Count || int64(len(job.Error)) < head[4]
	return job
}

// single completes a fresh job of one payload.
func (job Listed) single(record string) Listed {
	before := 10
	if strings.HasPrefix(record, "e") {
		before = 16
	}
	before = min(before, len(record))
	stored := record[before:]
	fresh, _, err := packed.Decode(job.ID, record[:before], nil)
	if err == nil {
		err = openCut(stored, job.Bytes, &fresh.Payloads[0])
	}
	if err != nil {
		return job.damaged(record)
	}
	job.Job, job.Count = fresh, 1
	job.Cut = len(stored) < job.Bytes
	return job
}

// openCut reads the beginning of a payload, of which this many bytes are stored. Nothing is shown of
// one that is cut off within its headers.
func openCut(stored string, bytes int, p *lowkiq.Payload) error {
	_, err := packed.Open(stored, p)
	if err != nil && len(stored) < bytes {
		p.Header, p.Data = "", nil
		return nil
	}
	return err
}

// damaged marks a job whose record, which begins like this, cannot be read.
func (job Listed) damaged(record string) Listed {
	job.Damaged, job.RetryCount = true, -1
	job.Error = fmt.Sprintf("%v: %.40q; check --repair moves it aside", packed.ErrDamaged, record)
	if packed.IsLater(record) {
		job.Damaged, job.Error = false, fmt.Sprintf("%v, form %q: this one leaves it alone", packed.ErrLater, record[0])
	}
	return job
}

// cutPayloads reads "score length:payload" as often as there is, the last one perhaps cut off.
func cutPayloads(text string) (payloads []lowkiq.Payload, bytes int, err error) {
	for text != "" {
		head, rest, ok := strings.Cut(text, ":")
		score, length, ok2 := strings.Cut(head, " ")
		if !ok || !ok2 {
			break // cut off before the payload began
		}
		n, err1 := strconv.Atoi(length)
		value, err2 := strconv.ParseFloat(score, 64)
		if err1 != nil || err2 != nil || n < 0 {
			return nil, 0, packed.ErrDamaged
		}
		data := rest[:min(n, len(rest))]
		p := lowkiq.Payload{Score: value}
		if err := openCut(data, n, &p); err != nil {
			return nil, 0, err
		}
		payloads = append(payloads, p)
		bytes += len(data)
		text = rest[len(data):]
	}
	packed.SortPayloads(payloads)
	return payloads, bytes, nil
}
