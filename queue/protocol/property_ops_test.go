package protocol_test

import (
	"context"
	"encoding/binary"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/model"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/queue/browse"
	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

func (m *machine) nack(t *rapid.T) {
	_, model, claim := m.drawShard(t)
	var nacks []Nack
	for _, a := range drawFlying(t, model) {
		nacks = append(nacks, Nack{
			Flight: a.Flight, ID: a.IDs[0], Kind: rapid.SampledFrom([]NackKind{Retry, Retry, Postpone, Hold, Return}).Draw(t, "kind"),
			RetryCount: model.InFlight[a.IDs[0]].Retry + 1, Error: rapid.SampledFrom([]string{"", "boom", "nul\x00 \n\xff"}).Draw(t, "error"),
			Delay: time.Duration(rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "hours")) * time.Hour, Ran: drawRan(t),
		})
		if last := &nacks[len(nacks)-1]; last.Kind == Postpone || last.Kind == Hold {
			last.Cancelled = rapid.Bool().Draw(t, "cancelled")
			last.Limited = !last.Cancelled && last.Kind == Postpone && rapid.Bool().Draw(t, "limited")
			last.Group = !last.Limited && last.Kind == Postpone && rapid.Bool().Draw(t, "its group")
		}
	}
	m.step()
	got, err := claim.Nack(m.ctx, nacks...)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, n := range nacks {
		want += model.NackJob(n)
	}
	m.counted(t, "nacked", got, want)
}

func (m *machine) bury(t *rapid.T) {
	_, model, claim := m.drawShard(t)
	var burials []Burial
	for _, a := range drawFlying(t, model) {
		burials = append(burials, Burial{
			Flight: a.Flight, ID: a.IDs[0], Policy: rapid.SampledFrom([]Policy{Skip, Bury, Block, Drop}).Draw(t, "policy"), Cancelled: rapid.Bool().Draw(t, "cancelled"),
			RetryCount: model.InFlight[a.IDs[0]].Retry + 1, Error: "exhausted", Ran: drawRan(t),
		})
		last := &burials[len(burials)-1]
		if last.Cancelled || last.Policy != Bury && last.Policy != Drop {
			continue
		}
		expired := rapid.Bool().Draw(t, "expired")
		if n := len(model.InFlight[last.ID].Payloads); (expired || last.Policy == Bury) && rapid.Bool().Draw(t, "some") {
			last.Places = rapid.SliceOfNDistinct(rapid.IntRange(0, n-1), 1, n, rapid.ID).Draw(t, "places")
		}
		if expired {
			last.Expired = max(1, len(last.Places))
		}
	}
	m.step()
	got, err := claim.Bury(m.ctx, burials...)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, b := range burials {
		want += model.BuryJob(b)
	}
	m.counted(t, "buried", got, want)
}

// recover: the owner dies, or goes on as its next instance, or hands the shard over.
func (m *machine) recover(t *rapid.T) {
	i, model, claim := m.drawShard(t)
	cause := rapid.SampledFrom([]Cause{Seize, Seize, Self, Fresh}).Draw(t, "cause")
	m.step()
	if cause == Fresh {
		n, err := claim.Release(m.ctx)
		if err != nil {
			t.Fatal(err)
		}
		back, _ := model.RecoverFlights(cause)
		m.counted(t, "released", n, back)
		m.compare(t)
		m.step()
	}
	fresh := m.claim(t, i, cause)
	if fresh.Fence <= claim.Fence {
		t.Fatalf("fence: got %d after %d, want it to grow", fresh.Fence, claim.Fence)
	}
	back, buried := model.RecoverFlights(cause)
	m.counted(t, "recovered", fresh.Recovered, back)
	m.counted(t, "buried as crashes", fresh.Buried, buried)
}

// admin: a person does something to some ids.
func (m *machine) admin(t *rapid.T) {
	ids := rapid.SliceOfN(drawID, 1, 3).Draw(t, "ids")
	place := rapid.SampledFrom([]browse.State{browse.Anywhere, browse.Anywhere, browse.StateRetry, browse.StateFailed, browse.StateHeld, browse.StateBlocked}).Draw(t, "place")
	type action struct {
		real func() (int, error)
		want func(*modelShard, string) int
	}
	q, ctx := m.q, m.ctx
	actions := map[string]action{
		"delete":  {func() (int, error) { return browse.Of(q).Delete(ctx, place, ids...) }, func(m *modelShard, id string) int { return m.DeleteJob(place, id) }},
		"kill":    {func() (int, error) { return browse.Of(q).Bury(ctx, place, ids...) }, func(m *modelShard, id string) int { return m.BuryWaiting(place, id) }},
		"oldest":  {func() (int, error) { return browse.Of(q).BuryOldest(ctx, place, ids...) }, func(m *modelShard, id string) int { return m.BuryOldest(place, id) }},
		"run now": {func() (int, error) { return browse.Of(q).RunNow(ctx, ids...) }, (*modelShard).RunNow},
		"requeue": {func() (int, error) { return browse.Of(q).Requeue(ctx, browse.StateMorgue, ids...) }, (*modelShard).RequeueDead},
		"unblock": {func() (int, error) { return browse.Of(q).Requeue(ctx, browse.StateBlocked, ids...) }, (*modelShard).UnblockID},
		"forget":  {func() (int, error) { return browse.Of(q).Delete(ctx, browse.StateMorgue, ids...) }, (*modelShard).DeleteDead},
	}
	name := rapid.SampledFrom([]string{"delete", "kill", "oldest", "run now", "requeue", "requeue", "unblock", "forget"}).Draw(t, "action")
	m.step()
	got, err := actions[name].real()
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, id := range ids {
		want += actions[name].want(m.of(id), id)
	}
	m.counted(t, name, got, want)
}

// sweep: a person does something to all.
func (m *machine) sweep(t *rapid.T) {
	m.step()
	var got, want int
	each := func(list func(*modelShard) []string, do func(*modelShard, string) int) {
		for _, model := range m.models {
			for _, id := range list(model) {
				want += do(model, id)
			}
		}
	}
	dead := func(m *modelShard) []string { return machineIDs }
	switch rapid.SampledFrom([]string{"run", "kill", "delete", "requeue", "forget"}).Draw(t, "sweep") {
	case "run":
		got = m.all(t, browse.RunNow, browse.StateScheduled) + m.all(t, browse.RunNow, browse.StateRetry)
		each(func(m *modelShard) []string { return append(m.DueIDs(freshJob), m.DueIDs(failedJob)...) }, (*modelShard).RunNow)
	case "kill":
		for _, model := range m.models {
			if sharesToken(model, model.FailedIDs()) {
				return
			}
		}
		got = m.all(t, browse.Kill, browse.StateFailed)
		each((*modelShard).FailedIDs, func(m *modelShard, id string) int { return m.BuryWaiting(browse.StateFailed, id) })
	case "delete":
		got = m.all(t, browse.Delete, browse.StateFailed)
		each((*modelShard).FailedIDs, func(m *modelShard, id string) int { return m.DeleteJob(browse.StateFailed, id) })
	case "requeue":
		got = m.all(t, browse.Requeue, browse.StateMorgue)
		each((*modelShard).DeadInOrder, (*modelShard).RequeueDead)
	case "forget":
		got = m.all(t, browse.DeleteBuried, browse.StateMorgue)
		each(dead, (*modelShard).DeleteDead)
	}
	m.counted(t, "swept", got, want)
}

// sharesToken reports whether payloads of two ids have the same token. The model does not say which of them
// replies last, because bulk actions go page by page.
func sharesToken(m *modelShard, ids []string) bool {
	of := map[string]string{}
	for _, id := range ids {
		for _, p := range m.Waiting[id].Payloads {
			content, _ := envelope.Open(p.Data)
			to, ok := envelope.ParseAddress(content.Address)
			if other, seen := of[to.Token]; ok && seen && other != id {
				return true
			}
			of[to.Token] = id
		}
	}
	return false
}

// release releases held ids, except one.
func (m *machine) release(t *rapid.T) {
	_, model, claim := m.drawShard(t)
	still := drawID.Draw(t, "still")
	held := func(id string) bool { return id == still }
	m.step()
	got, err := claim.ReleaseHeld(m.ctx, held)
	if err != nil {
		t.Fatal(err)
	}
	m.counted(t, "released", got, model.ReleaseHeld(held))
}

// regroup makes another rule of groups hold.
func (m *machine) regroup(t *rapid.T) {
	_, model, claim := m.drawShard(t)
	m.step()
	got, err := claim.Regroup(m.ctx, "another")
	if err != nil {
		t.Fatal(err)
	}
	m.counted(t, "let ask again", got, model.MakeGroupsDue())
}

// trim keeps the morgue within its bounds, as the owner does.
func (m *machine) trim(t *rapid.T) {
	_, model, claim := m.drawShard(t)
	keep := rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "keep")
	age := time.Duration(rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "hours")) * time.Hour
	m.step()
	got, err := claim.TrimMorgue(m.ctx, keep, age)
	if err != nil {
		t.Fatal(err)
	}
	m.counted(t, "trimmed", got, model.TrimMorgue(keep, age))
}

// all applies an action to all jobs of a state, in small steps.
func (m *machine) all(t *rapid.T, action *browse.Action, state browse.State) (changed int) {
	query := browse.Query{State: state, Range: browse.Range{Limit: 2}}
	for {
		step, err := browse.Of(m.q).Bulk(m.ctx, action, query)
		if err != nil {
			t.Fatal(err)
		}
		changed += step.Changed
		if query.Cursor = step.Next; step.Next == "" {
			return changed
		}
	}
}

// pass lets hours go by.
func (m *machine) pass(t *rapid.T) {
	hours := rapid.SampledFrom([]int{1, 2}).Draw(t, "hours")
	us := (time.Duration(hours) * time.Hour).Microseconds()
	m.step()
	for i, model := range m.models {
		model.PassTime(us)
		if err := pass(m.q.Shard(i), m.ctx, model.Now, us); err != nil {
			t.Fatal(err)
		}
	}
}

// headRule finds in a record of form j or s the due time, and since when the job waits if it was put off.
var headRule = regexp.MustCompile(`^([js]-?\d+ )(\d+)((?: \d+){4,5}?)(?: (\d+)( \d))?\n`)

// pass moves future times closer and states into the past, in Redis. Only a test can do this.
func pass(s *Shard, ctx context.Context, now, us int64) error {
	r, err := readRaw(s, ctx)
	if err != nil {
		return err
	}
	pipe := s.DB().ForTests().Pipeline()
	for key, set := range map[string][]redis.Z{s.Keys().Due: r.due.Val(), s.Keys().Retry: r.retry.Val()} {
		for _, z := range set {
			if int64(z.Score) > now && int64(z.Score) < HeldAt.UnixMicro() {
				pipe.ZAdd(ctx, key, redis.Z{Score: z.Score - float64(us), Member: z.Member})
			}
		}
	}
	for key, records := range map[string]map[string]string{s.Keys().Jobs: r.jobs.Val(), s.Keys().Parked: r.parked.Val()} {
		for id, record := range records {
			if key == s.Keys().Jobs && slices.Contains(r.flight.Val(), id) {
				continue
			}
			if record[0] == 'e' { // 7 bytes of time
				if at := int64(binary.BigEndian.Uint64([]byte("\x00" + record[1:8]))); at > now && at < HeldAt.UnixMicro() {
					sooner := binary.BigEndian.AppendUint64(nil, uint64(at-us))
					pipe.HSet(ctx, key, id, "e"+string(sooner[1:])+record[8:])
				}
			} else if found := headRule.FindStringSubmatch(record); found != nil {
				if at, _ := strconv.ParseInt(found[2], 10, 64); at > now && at < HeldAt.UnixMicro() {
					head := found[1] + strconv.FormatInt(at-us, 10) + found[3]
					if found[4] != "" {
						since, _ := strconv.ParseInt(found[4], 10, 64)
						head += " " + strconv.FormatInt(since-us, 10) + found[5]
						pipe.ZAddXX(ctx, s.Keys().Postponed, redis.Z{Score: float64(since - us), Member: id})
					}
					pipe.HSet(ctx, key, id, head+record[len(found[0])-1:])
				}
			}
		}
	}
	for id, record := range r.morgue.Val() {
		if found := headRule.FindStringSubmatch(record); found != nil {
			at, _ := strconv.ParseInt(found[2], 10, 64)
			pipe.HSet(ctx, s.Keys().Morgue, id, found[1]+strconv.FormatInt(at-us, 10)+record[len(found[1])+len(found[2]):])
			pipe.ZAdd(ctx, s.Keys().Dead, redis.Z{Score: float64(at - us), Member: id})
		}
	}
	for _, z := range r.statesx.Val() {
		pipe.ZAdd(ctx, s.Keys().Statesx, redis.Z{Score: z.Score - float64(us), Member: z.Member})
	}
	for _, z := range r.since.Val() {
		pipe.ZAdd(ctx, s.Keys().Since, redis.Z{Score: z.Score - float64(us), Member: z.Member})
	}
	if pipe.Len() == 0 {
		return nil
	}
	_, err = pipe.Exec(ctx)
	return err
}

func verdictOf(r Result) model.Verdict {
	switch {
	case r.Err == nil && r.Merged:
		return model.Merged
	case r.Err == nil:
		return model.Stored
	}
	return model.Verdict(verdictText(r.Err))
}

func verdictText(err error) string {
	if errors.Is(err, ErrUnsent) {
		return string(model.Unsent)
	}
	for text, target := range map[string]error{string(model.TooMany): ErrTooManyPayloads, string(model.TooManyByte): ErrTooManyBytes} {
		if errors.Is(err, target) {
			return text
		}
	}
	return err.Error()
}
