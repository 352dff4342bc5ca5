package protocol_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"

	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/model"
	"github.com/lowkiq/lowkiq/internal/store/journal"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

var propertyTests = []testCase{{"Model", testModel}}

// testModel applies random operations to the queue and to the model of section 4, and compares the full
// state after each. "-rapid.checks=1000 -rapid.steps=100" makes it long. A failure prints its seed, shrunk.
func testModel(t *testing.T, b *backend) {
	client := b.open(t)
	client.DB().ForTests().AddHook(twice{})
	heard := client.DB().ForTests().(redis.UniversalClient).Subscribe(t.Context())
	defer heard.Close()
	rapid.Check(t, func(rt *rapid.T) {
		if b.second && rapid.Uint64().Draw(rt, "second")%8 != 0 {
			return
		}
		ctx := t.Context()
		if rapid.Bool().Draw(rt, "every script comes twice") {
			ctx = repeated(ctx)
		}
		c := Rename(rt, client, b.name())
		if rapid.Bool().Draw(rt, "pops share a script") {
			c.ShareAlways()
		}
		m := newMachine(rt, ctx, c)
		m.listen(rt, heard)
		rt.Repeat(map[string]func(*rapid.T){
			"push":    m.push,
			"push2":   m.push,
			"deliver": m.deliver,
			"import":  m.importSome,
			"import2": m.importSome,
			"pop":     m.popNext,
			"pop2":    m.popNext,
			"pop+":    m.popAgain,
			"ack":     m.ack,
			"nack":    m.nack,
			"note":    m.note,
			"bury":    m.bury,
			"recover": m.recover,
			"admin":   m.admin,
			"sweep":   m.sweep,
			"trim":    m.trim,
			"release": m.release,
			"regroup": m.regroup,
			"pass":    m.pass,
			"":        m.compare,
		})
	})
}

// machine has the queue and the models of its shards.
type machine struct {
	ctx       context.Context
	q         *Queue
	models    []*modelShard
	states    []*state // as last compared
	claims    []*Claim
	instances int
	machineCalls
	machineImports
}

// Small limits are reached often, and so are the bounds of the spill (32 payloads, 4 KiB) and of a piece.
const (
	machinePayloads   = 130
	machineBytes      = 14000
	machinePiece      = 40
	machinePieceBytes = 5500
)

// inSmallSteps returns the scripts with bounds that a few payloads reach.
var inSmallSteps = sync.OnceValue(func() *redisdb.Scripts {
	s, changed := redisdb.NewScripts(), 0
	for _, one := range s.All() {
		text := strings.NewReplacer(
			"piece_count, piece_bytes = 2000, 1048576", fmt.Sprintf("piece_count, piece_bytes = %d, %d", machinePiece, machinePieceBytes),
			"seen >= 2000", "seen >= 60",
		).Replace(one.Text())
		if text != one.Text() {
			changed++
			one.SetText(text)
		}
	}
	if changed < 9 {
		panic(fmt.Sprintf("%d scripts have a bound, want those of workers and of people", changed))
	}
	return s
})

var machineIDs = []string{"a", "b", "c", "d", "e"}

func newMachine(t *rapid.T, ctx context.Context, c *Client) *machine {
	coalesce := rapid.SampledFrom([]string{"", "", rules.CoalesceLatest, rules.CoalesceOnce}).Draw(t, "coalesce")
	debounce := rapid.SampledFrom([]rules.Debounce{{}, {}, {Quiet: time.Hour, Most: 2 * time.Hour}}).Draw(t, "debounce")
	if err := c.SetRules("q", PushRules{Push: rules.Push{Payloads: machinePayloads, IDPayload: machineBytes, Coalesce: coalesce, Debounce: debounce}}); err != nil {
		t.Fatal(err)
	}
	c.DB().Scripts = inSmallSteps()
	if err := c.DB().Load(ctx); err != nil { // a pop that is sent twice because of that has another number
		t.Fatal(err)
	}
	shards := rapid.IntRange(1, 2).Draw(t, "shards")
	q, err := c.Register(ctx, lowkiq.Queue{Name: "q", Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{ctx: ctx, q: q, claims: make([]*Claim, shards), states: make([]*state, shards)}
	for i := range shards {
		model := model.NewShard(machinePayloads, machineBytes)
		model.MaxPiece, model.MaxPieceBytes = machinePiece, machinePieceBytes
		model.Coalesce, model.Debounce = coalesce, debounce
		model.Journal = rapid.SampledFrom([]journal.Rule{journal.Default, {Runs: journal.All, Keep: 1000}, {Runs: journal.All, Keep: 3}, {Runs: journal.None, Keep: 1}}).Draw(t, "journal")
		m.models = append(m.models, model)
		m.claim(t, i, Fresh)
	}
	m.stateFor = rapid.SampledFrom([]time.Duration{0, 90 * time.Minute}).Draw(t, "states are kept for")
	return m
}

func (m *machine) claim(t *rapid.T, shard int, cause Cause) *Claim {
	m.instances++
	s := m.q.Shard(shard)
	seen, err := s.Owner(m.ctx)
	if err != nil {
		t.Fatal(err)
	}
	m.claims[shard], err = s.Claim(m.ctx, fmt.Sprint("n/", m.instances), cause, seen)
	if err != nil {
		t.Fatal(err)
	}
	model := m.models[shard]
	same(t, "held ids", m.claims[shard].HasHeld(), slices.ContainsFunc(slices.Collect(maps.Keys(model.Scheduled)), model.IsHeld))
	m.claims[shard].SetJournal(model.Journal)
	return m.claims[shard]
}

func (m *machine) of(id string) *modelShard { return m.models[lowkiq.ShardOf(id, m.q.Shards)] }

// step sets the time of all models.
func (m *machine) step() {
	now := time.Now().UnixMicro()
	for _, model := range m.models {
		model.Now = now
	}
}

func same(t *rapid.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Fatalf("%s: got %s, want %s", what, g, w)
	}
}

// counted compares a number that is a sum over several scripts. If each script comes twice, the effects of
// the second are not counted.
func (m *machine) counted(t *rapid.T, what string, got, want int) {
	t.Helper()
	if m.ctx.Value(twiceKey{}) == nil || got > want {
		same(t, what, got, want)
	}
}

func (m *machine) compare(t *rapid.T) {
	hi := time.Now().UnixMicro() + 1000 // default scores may run ahead of the clock
	var total Counts
	for i, model := range m.models {
		st, err := readState(m.q.Shard(i), m.ctx)
		if err == nil {
			err = diff(model, st, hi)
		}
		m.states[i] = st
		if err != nil {
			t.Fatalf("shard %d:\n%v", i, err)
		}
		c := model.CountJobs()
		total.Ready += c.Ready
		total.Scheduled += c.Scheduled
		total.Retry += c.Retry
		total.Held += c.Held
		total.InFlight += c.InFlight
		total.Blocked += c.Blocked
		total.Failed += c.Failed
	}
	stats, err := m.q.Stats(m.ctx)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "stats", stats.Jobs, total)
	m.compareLag(t)
	m.compareReplies(t)
	m.compareNews(t)
}

// compareLag compares each shard's lag with its state, which equals the state of the model.
func (m *machine) compareLag(t *rapid.T) {
	all, err := ClientOf(m.q).Stats(m.ctx, m.q.All()...)
	if err != nil {
		t.Fatal(err)
	}
	for i, stats := range all {
		want := time.Duration(0)
		if oldest := m.states[i].oldest(stats.Now.UnixMicro()); oldest > 0 {
			want = time.Duration(stats.Now.UnixMicro()-oldest) * time.Microsecond
		}
		same(t, fmt.Sprintf("shard %d: lag", i), stats.Lag, want)
	}
}

// oldest returns since when the job waits that has waited longest for a handler, 0 if there is none.
func (st *state) oldest(now int64) (oldest int64) {
	see := func(job *modelJob) {
		if since := job.WaitsSince(); since <= now && job.At < HeldAt.UnixMicro() && (oldest == 0 || since < oldest) {
			oldest = since
		}
	}
	for id, job := range st.jobs {
		_, blocked := st.blocked[id]
		if st.flight[id] == 0 && !blocked {
			see(job)
		}
	}
	for _, job := range st.parked {
		see(job)
	}
	return oldest
}

var (
	drawID      = rapid.SampledFrom(machineIDs)
	drawScore   = rapid.SampledFrom([]float64{-1, 0, 1, 1, 2.5, 1e18})
	drawPayload = rapid.Custom(func(t *rapid.T) string {
		if rapid.IntRange(0, 9).Draw(t, "size") == 0 {
			return strings.Repeat(rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "big"), 2500)
		}
		return rapid.SampledFrom([]string{"", "p", "q", "r", "\x00L", "\x00L\x00\x00\x00p"}).Draw(t, "payload")
	})
	drawHeader = rapid.Map(rapid.SampledFrom([]string{"", "", "", "1", "22"}), func(value string) map[string]string {
		if value == "" {
			return nil
		}
		return map[string]string{"h": value}
	})
	drawHours = rapid.SampledFrom([]int{-2, -1, 1, 2, 3})
)

func (m *machine) push(t *rapid.T) {
	var jobs []lowkiq.Push
	switch rapid.IntRange(0, 9).Draw(t, "form") {
	case 0: // a crowd for one id
		id, n, header := drawID.Draw(t, "id"), rapid.IntRange(20, 100).Draw(t, "n"), drawHeader.Draw(t, "header")
		called := rapid.IntRange(0, 2).Draw(t, "called") == 0
		for i := range n {
			job := lowkiq.Push{ID: id, Payload: fmt.Append(nil, i%70), Header: header}
			if called {
				job.ReplyTo = m.newAddress()
			}
			jobs = append(jobs, job)
		}
	case 1, 2, 3: // no scores
		for _, id := range rapid.SliceOfN(drawID, 1, 5).Draw(t, "ids") {
			jobs = append(jobs, lowkiq.Push{ID: id, Payload: []byte(drawPayload.Draw(t, "p")), Header: drawHeader.Draw(t, "header")})
		}
	case 4, 5: // all with scores
		for _, id := range rapid.SliceOfN(drawID, 1, 5).Draw(t, "ids") {
			jobs = append(jobs, lowkiq.Push{ID: id, Payload: []byte(drawPayload.Draw(t, "p")), Score: new(drawScore.Draw(t, "score"))})
		}
	default:
		for range rapid.IntRange(1, 4).Draw(t, "n") {
			jobs = append(jobs, drawPush(t))
		}
	}
	for i := range jobs {
		if jobs[i].ReplyTo == "" {
			jobs[i].ReplyTo = m.drawAddress(t)
		}
	}
	if rapid.IntRange(0, 2).Draw(t, "urgent") == 0 {
		for i := range jobs {
			jobs[i].Urgent = rapid.Bool().Draw(t, "urgent")
		}
	}
	m.step()
	ready := make([]int, len(m.models))
	for i, model := range m.models {
		ready[i] = len(model.Ready)
	}
	results, _ := m.q.Push(m.ctx, jobs...)
	urgent := make([][]string, len(m.models))
	for i, want := range m.pushToModels(jobs) {
		job := jobs[i]
		if got := verdictOf(results[i]); got != want {
			t.Fatalf("push %d of %.300s: got %s, want %s", i, fmt.Sprintf("%q", job.Payload), got, want)
		}
		if shard := lowkiq.ShardOf(job.ID, m.q.Shards); job.Urgent && (want == model.Stored || want == model.Merged) && !slices.Contains(urgent[shard], job.ID) {
			urgent[shard] = append(urgent[shard], job.ID)
		}
	}
	if m.ctx.Value(twiceKey{}) != nil { // a push by the rule "latest" may add a payload when it comes again
		m.pushToModels(jobs)
	}
	for i, ids := range urgent {
		m.models[i].MakeUrgent(ready[i], ids...)
	}
	for _, job := range jobs {
		m.of(job.ID).ForgetPushes()
	}
}

// pushToModels pushes jobs to the models, and returns a verdict for each.
func (m *machine) pushToModels(jobs []lowkiq.Push) (verdicts []model.Verdict) {
	full := map[string]bool{}
	for i, job := range jobs {
		p := m.modelPayload(job, int64(i))
		var next []modelPayload
		for k, other := range jobs[i+1:] {
			if other.ID == job.ID && other.ReplyTo == "" {
				next = append(next, m.modelPayload(other, int64(i+1+k)))
			}
		}
		verdict := m.modelPush(job, p, full[job.ID], next)
		full[job.ID] = full[job.ID] || verdict == model.TooMany || verdict == model.TooManyByte
		verdicts = append(verdicts, verdict)
	}
	return verdicts
}

func drawPush(t *rapid.T) lowkiq.Push {
	job := lowkiq.Push{ID: drawID.Draw(t, "id"), Payload: []byte(drawPayload.Draw(t, "p")), Header: drawHeader.Draw(t, "header")}
	if rapid.Bool().Draw(t, "scored") {
		job.Score = new(drawScore.Draw(t, "score"))
	}
	if rapid.Bool().Draw(t, "timed") {
		job.PerformAt = time.Now().Truncate(time.Hour).Add(time.Duration(drawHours.Draw(t, "hours")) * time.Hour)
	}
	return job
}

func (m *machine) modelPayload(job lowkiq.Push, place int64) modelPayload {
	header, _ := lowkiq.NewHeader(job.Header)
	p := modelPayload{Data: storedWith(lowkiq.Payload{Header: header, Data: job.Payload}, job.ReplyTo), Score: float64(m.of(job.ID).Now+place) / 1e6, Soft: true}
	if job.Score != nil {
		p.Score, p.Soft = *job.Score, false
	}
	return p
}

func (m *machine) modelPush(job lowkiq.Push, p modelPayload, full bool, next []modelPayload) model.Verdict {
	at := int64(0)
	if !job.PerformAt.IsZero() {
		at = job.PerformAt.UnixMicro()
	} else if job.Urgent {
		at = model.Undelayed
	}
	return m.of(job.ID).PushPayload(job.ID, p, at, full, next...)
}

func (m *machine) drawShard(t *rapid.T) (int, *modelShard, *Claim) {
	i := rapid.IntRange(0, m.q.Shards-1).Draw(t, "shard")
	return i, m.models[i], m.claims[i]
}

// drawFlying draws ids in flight, sometimes with a wrong flight.
func drawFlying(t *rapid.T, model *modelShard) (acks []Acks) {
	if len(model.InFlight) == 0 {
		return nil
	}
	for _, id := range rapid.SliceOfN(rapid.SampledFrom(slices.Sorted(maps.Keys(model.InFlight))), 0, 3).Draw(t, "flying") {
		number := model.FlightOf[id]
		if rapid.IntRange(0, 9).Draw(t, "stale") == 0 {
			number--
		}
		acks = append(acks, Acks{Flight: number, IDs: []string{id}})
	}
	return acks
}

func (m *machine) popNext(t *rapid.T) {
	_, model, claim := m.drawShard(t)
	req := PopRequest{
		IDs: rapid.IntRange(1, 4).Draw(t, "most"), Bytes: rapid.SampledFrom([]int{1, 1 << 20}).Draw(t, "bytes"),
		MaxCrashes: rapid.SampledFrom([]int{0, 2, 3}).Draw(t, "max_crashes"), Slot: rapid.Bool().Draw(t, "slot"), NoSuspect: rapid.IntRange(0, 4).Draw(t, "no suspect") == 0,
		Acks: m.drawAcks(t, model), States: true,
	}
	m.step()
	got, err := claim.Pop(m.ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	model.AckJobs(req.Acks)
	ids, state := model.PopIDs(req.IDs, req.Bytes == 1, req.Slot, !req.NoSuspect)
	model.MaxCrashes = req.MaxCrashes
	if len(req.Acks) > 0 && got.Flight == model.PopNumber+1 && sentAgain.Add(1) <= 20 {
		model.PopNumber++
		for _, id := range ids {
			model.FlightOf[id] = model.PopNumber
		}
	}
	samePop(t, model, got, ids, state)
}

// sentAgain counts pops that were sent again with their acks, because a Redis did not know the script of
// the acks yet. If the first pop took nothing, the second has the next number. A Redis learns each script
// once.
var sentAgain atomic.Int64

func samePop(t *rapid.T, m *modelShard, got Popped, ids []string, state Quarantine) {
	popped := make([]string, 0, len(got.Jobs))
	for _, job := range got.Jobs {
		popped = append(popped, job.ID)
		var payloads []string
		for _, p := range m.InFlight[job.ID].InOrder() {
			payloads = append(payloads, p.AsHandled())
		}
		same(t, "payloads of "+job.ID, fmt.Sprintf("%.30q", dataOf(job.Payloads)), fmt.Sprintf("%.30q", payloads))
		same(t, "callers of "+job.ID, job.Callers, m.InFlight[job.ID].CountCallers())
		state := "none"
		if m.States[job.ID] != nil {
			state = "is " + m.States[job.ID].Data
		}
		same(t, "state of "+job.ID, stateText(job.State), state)
	}
	same(t, "popped", popped, ids)
	same(t, "quarantine", got.Quarantine, state)
	same(t, "flight", got.Flight, m.PopNumber)
	line, _ := m.Line()
	same(t, "ready", got.Ready, len(line))
	open := map[int64]bool{}
	for _, number := range m.FlightOf {
		open[number] = true
	}
	slices.Sort(got.Open)
	same(t, "open", got.Open, slices.Sorted(maps.Keys(open)))
	next := time.Time{}
	if due := m.DueIDs(func(*modelJob) bool { return true }); len(due) > 0 {
		next = time.UnixMicro(m.Waiting[due[0]].At)
	}
	// Jobs whose times are still soft are compared by the state.
	if len(m.Scheduled) > 0 && !m.AnySoft() {
		same(t, "next", got.Next, next)
	}
}

func dataOf(payloads []lowkiq.Payload) (data []string) {
	for _, p := range payloads {
		data = append(data, storedOf(p))
	}
	return data
}

// popAgain repeats the last pop, as after a lost answer.
func (m *machine) popAgain(t *rapid.T) {
	i, model, claim := m.drawShard(t)
	if model.PopNumber == 0 {
		return
	}
	m.step()
	again := m.q.Shard(i).Adopt(claim.Instance, claim.Fence)
	again.WithLastPop(claim.LastPop() - 1)
	got, err := again.Pop(m.ctx, PopRequest{IDs: 4, Bytes: 1, MaxCrashes: model.MaxCrashes, States: true})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for id, number := range model.FlightOf {
		if number == model.PopNumber {
			want = append(want, id)
		}
	}
	if len(want) == 0 { // it pops on: what the lost answer said, to wait or to pop again, is not known
		ids, state := model.PopIDs(4, true, false, true)
		samePop(t, model, got, ids, state)
		claim.WithLastPop(again.LastPop())
		return
	}
	slices.Sort(want)
	slices.SortFunc(got.Jobs, func(x, y lowkiq.Job) int { return strings.Compare(x.ID, y.ID) })
	state := NotQuarantined
	if len(want) == 1 {
		if _, suspect := model.Crashes[want[0]]; suspect {
			state = QuarantineTaken
		}
	}
	samePop(t, model, got, want, state)
}

func (m *machine) ack(t *rapid.T) {
	_, model, claim := m.drawShard(t)
	acks := m.drawAcks(t, model)
	m.step()
	n, err := claim.Ack(m.ctx, acks...)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "acked", n, model.AckJobs(acks))
}
