package runner

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Limits of groups hold for the whole cluster. Right before a call the lane asks which ids of its batch may begin. The others go
// back, no retry spent, each until a time of its own at which it is to ask again: they rise, so that they come back one
// after the other, and other groups have the lanes meanwhile.
//
// One request of a queue and node is on its way at a time; what lanes ask meanwhile goes with the next one. It says how many ids of
// each group the node has in calls, all that were granted, so a lost answer is mended by the next request.

// AskGroups asks Redis; see queue.Client.AskGroups.
type AskGroups func(*queue.GroupRequest) ([]queue.GroupGrant, error)

// groups are what a node knows of a queue's groups.
type groups struct {
	mu        sync.Mutex
	asks      []*groupAsk               // of lanes that wait; guarded by mu
	busy      map[string]int            // ids that were granted and whose calls have not ended, by group; guarded by mu
	untold    map[string]time.Duration  // groups whose busy Redis is to be told, or for how long to let none begin; guarded by mu
	back      map[string]bool           // ids that were told to ask again; guarded by mu
	full      map[string]fullGroup      // groups that let an id not begin; guarded by mu
	took      time.Duration             // by a call, the mean of late; guarded by mu
	waiters   map[string][]*groupWaiter // lanes that wait for permits of groups, in the order in which they came; guarded by mu
	handOvers map[string]int            // how often permits of a group may be handed over, of those that were granted; guarded by mu
	asking    bool                      // a request is on its way; guarded by mu
	number    int64                     // of the last request; guarded by mu
	told      time.Time                 // when that was; guarded by mu
}

// fullGroup is what is known of a group that let an id not begin.
type fullGroup struct {
	until time.Time // then those behind it may try again
	since time.Time // when the first one was refused after the last one that was let go; zero: none was
}

// groupAsk is what a lane asks for.
type groupAsk struct {
	ids, groups []string
	back        []bool

	done  chan struct{}
	waits []time.Duration // by id: 0 if it may begin, else after that it is to ask again
	err   error
}

// mostBack bounds how many ids are remembered that were told to ask again; those that are forgotten ask as if for the first time.
const mostBack = 100_000

// fullFor is for how long after a group has let an id not begin what waits behind it goes back with it.
const fullFor = time.Second

// keepFull is for how long it is remembered then since when none of the group was let go: longer than an id waits to ask again.
const keepFull = time.Minute

// backlogFrom is how many ids a shard's lanes are refused, one after the other, before all that waits of such groups goes back together.
const backlogFrom = 8

// longestStop bounds for how long a handler holds its group back with one answer.
const longestStop = time.Hour

// longestWait bounds after how long an id is to ask again, whatever stands before it.
const longestWait = time.Hour

// restate is how often Redis is told of groups whose calls run for long: it keeps for an hour what it is told.
const restate = 10 * time.Minute

// ask adds what a lane asks for. It reports whether the caller is to send requests.
func (g *groups) ask(a *groupAsk) (send bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range a.ids {
		a.back = append(a.back, g.back[id])
	}
	g.asks = append(g.asks, a)
	return g.begin()
}

// begin reports whether the caller is to send requests. mu is held.
func (g *groups) begin() bool {
	first := !g.asking
	g.asking = true
	return first
}

// end notes that calls of ids of groups have ended.
func (g *groups) end(of []string, took time.Duration, limit rules.Limit) (send bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.took == 0 {
		g.took = took
	}
	if took > 0 { // they had a call
		g.took += (took - g.took) / 8
	}
	for _, group := range of {
		if g.handOver(group) {
			continue
		}
		send = true
		if g.busy[group]--; g.busy[group] <= 0 {
			delete(g.busy, group)
			g.dismiss(group)
		}
		if limit.Concurrency > 0 {
			g.tell(group, 0)
		}
	}
	return send && limit.Concurrency > 0 && g.begin()
}

// stop has none of a group begin for some time, from now on.
func (g *groups) stop(group string, d time.Duration) (send bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dismiss(group)
	g.tell(group, d)
	return g.begin()
}

// tell has the next request say what there is of a group. mu is held.
func (g *groups) tell(group string, stop time.Duration) {
	if g.untold == nil {
		g.untold = map[string]time.Duration{}
	}
	g.untold[group] = max(g.untold[group], min(stop, longestStop))
}

// tend reports whether the caller is to send requests, as some have failed, or as calls run for long.
func (g *groups) tend() (send bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.busy) > 0 && time.Since(g.told) > restate {
		g.restate()
	}
	return len(g.untold) > 0 && g.begin()
}

// changed has requests say what there is of all groups, as their limit is another one: none is handed over that this may not let begin.
func (g *groups) changed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for group := range g.busy {
		g.dismiss(group)
	}
	g.restate()
}

// restate has requests say what there is of all groups. mu is held.
func (g *groups) restate() {
	for group := range g.busy {
		g.tell(group, 0)
	}
}

// request takes what the next one is about; nil: there is nothing to ask or to tell. mu is held.
func (g *groups) request(limit rules.Limit) (r *queue.GroupRequest, asks []*groupAsk) {
	at := map[string]int{}
	r = &queue.GroupRequest{Limit: limit}
	want := func(group string) *queue.GroupWant {
		i, there := at[group]
		if !there {
			i = len(r.Groups)
			at[group] = i
			r.Groups = append(r.Groups, queue.GroupWant{Group: group, Busy: g.busy[group], Stop: g.untold[group], Spacing: g.spacing(group, limit)})
			delete(g.untold, group)
		}
		return &r.Groups[i]
	}
	for len(g.asks) > 0 && (len(asks) == 0 || len(r.Groups)+len(g.asks[0].ids) <= queue.GroupsAtOnce) {
		a := g.asks[0]
		asks, g.asks = append(asks, a), g.asks[1:]
		for i, group := range a.groups {
			if a.back[i] {
				want(group).Back++
			} else {
				want(group).New++
			}
		}
	}
	for group := range g.untold {
		if len(r.Groups) >= queue.GroupsAtOnce {
			break
		}
		want(group)
	}
	if len(r.Groups) == 0 {
		g.asking = false
		return nil, nil
	}
	g.number++
	r.Number, g.told = g.number, time.Now()
	return r, asks
}

// spacing is what is to lie between two ids of a group that ask again. They come a bit more often than its calls end. When a call has
// ended, nothing of the group runs until the next one comes, half of the spacing later: so it is a tenth of what a call takes, as
// long as that means no more than about 500 requests a second for all groups of the node. Where none was let go for a second, and four
// calls, those of the group are taken to last as long as that is ago: they hang, or run on another node and none has ended here yet. No
// sooner: whose turn it is asks after one spacing, and others leave it a permit meanwhile. mu is held.
func (g *groups) spacing(group string, limit rules.Limit) time.Duration {
	if limit.Concurrency == 0 {
		return 0
	}
	took := g.took
	if since := g.full[group].since; !since.IsZero() {
		if ago := time.Since(since); ago > max(4*took, time.Second) {
			took = ago
		} else if took == 0 {
			took = min(ago, 50*time.Millisecond)
		}
	}
	return min(took*6/10/time.Duration(limit.Concurrency), max(took/10, 2*time.Millisecond*time.Duration(len(g.busy))), 10*time.Second)
}

// take hands an answer to the lanes that have asked. By another limit than the one in force nothing is handed over. mu is held.
func (g *groups) take(r *queue.GroupRequest, asks []*groupAsk, grants []queue.GroupGrant, err error, inForce rules.Limit) {
	at := map[string]int{}
	for i := range r.Groups {
		at[r.Groups[i].Group] = i
		if err != nil {
			g.tell(r.Groups[i].Group, r.Groups[i].Stop)
		} else if grants[i].Stopped {
			g.dismiss(r.Groups[i].Group)
		}
	}
	if err != nil { // lanes that asked meanwhile ask again, too, if they still may: whoever tends may have ended
		asks, g.asks = append(asks, g.asks...), nil
	}
	if len(g.back) > mostBack || g.back == nil {
		g.back = map[string]bool{}
	}
	if g.busy == nil {
		g.busy = map[string]int{}
	}
	for _, a := range asks {
		a.err, a.waits = err, make([]time.Duration, len(a.ids))
		for i, id := range a.ids {
			if err != nil {
				break
			}
			grant := &grants[at[a.groups[i]]]
			left, in := &grant.New, &grant.NewIn
			if a.back[i] {
				left, in = &grant.Back, &grant.BackIn
			}
			if *left > 0 {
				*left--
				g.let(a.groups[i], !a.back[i])
				g.busy[a.groups[i]]++
				if g.untold[a.groups[i]] == 0 && r.Limit == inForce { // else this was granted before a handler stopped it, or by another limit
					g.granted(a.groups[i])
				}
				delete(g.back, id)
				continue
			}
			a.waits[i] = min(max(*in, time.Millisecond), longestWait)
			*in += r.Groups[at[a.groups[i]]].Gap(r.Limit)
			g.back[id] = true
			g.fill(a.groups[i])
		}
		close(a.done)
	}
	g.asking = g.asking && err == nil // else whoever asks next, or tends, begins anew
}

// fill notes that a group has let an id not begin. mu is held.
func (g *groups) fill(group string) {
	now := time.Now()
	if g.full == nil {
		g.full = map[string]fullGroup{}
	}
	was, known := g.full[group]
	if !known && len(g.full)%1000 == 999 {
		maps.DeleteFunc(g.full, func(_ string, f fullGroup) bool { return now.Sub(f.until) > keepFull })
	}
	if was.since.IsZero() {
		was.since = now
	}
	g.full[group] = fullGroup{now.Add(fullFor), was.since}
}

// let notes that a group has let an id begin; others: also those may try that were not told before to ask again. mu is held.
func (g *groups) let(group string, others bool) {
	was, known := g.full[group]
	switch {
	case !known:
	case others:
		delete(g.full, group)
	default:
		g.full[group] = fullGroup{until: was.until}
	}
}

// notFull has lanes ask for ids of groups again.
func (g *groups) notFull(of ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, group := range of {
		delete(g.full, group)
	}
}

// refuses reports whether an id that was not told to ask again is of a group that has just let another one not begin.
func (g *groups) refuses(id, group string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.back[id] && time.Now().Before(g.full[group].until)
}

// sendGroups sends requests until there is nothing left to ask or to tell.
func (q *Queue) sendGroups() {
	g := &q.live.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.asking {
		r, asks := g.request(q.rules().Groups.Limit)
		if r == nil {
			return
		}
		g.mu.Unlock()
		grants, err := q.AskGroups(r)
		g.mu.Lock()
		g.take(r, asks, grants, err, q.rules().Groups.Limit)
		if q.rules().Groups.Limit != r.Limit { // it was changed meanwhile: by another one Redis may keep nothing of these groups
			for i := range r.Groups {
				g.tell(r.Groups[i].Group, 0)
			}
			g.asking = true
		}
	}
}

// ToRegroup says whether ids of the shard that their groups have put off are to be made due, as another rule of groups holds than the one by which
// they wait. Whoever asks does it then, and calls Regrouped.
func (r *Runner) ToRegroup() (rule string, now bool) {
	rule = r.queue.rules().Groups.Rule()
	return rule, rule != *r.regrouped.Load()
}

// Regrouped notes the rule by which ids have been made due.
func (r *Runner) Regrouped(rule string) { r.regrouped.Store(&rule) }

// TendGroups tells Redis what it has to know of groups and could not be told, or would forget. It is to be called once a second or so.
func (q *Queue) TendGroups() {
	if q.live.groups.tend() {
		q.sendGroups()
	}
}

// admit takes those out of a batch that their groups do not let begin. It reports whether any is left, and whether Redis was asked.
func (r *Runner) admit(batch *lowkiq.Batch, t *turn) (left, asked bool) {
	by := r.queue.rules().Groups
	if by.By == "" || t.groups != nil {
		return true, false
	}
	asks := groupAsks(by, batch.Jobs)
	if len(asks) == 0 {
		return true, false
	}
	send := false
	for _, a := range asks {
		send = r.queue.live.groups.ask(a) || send
	}
	if send {
		r.process.Lanes.Go(r.queue.sendGroups)
	}
	t.admitted = r.process.Now()
	refused, news, let := lowkiq.Failed{}, 0, false // news: ids that were not told before when to ask; let: one of those may begin
	var first, group string                         // the first id that was told before, and may not begin; "": none was
	var failed error
	for _, a := range asks {
		if <-a.done; a.err != nil {
			failed = a.err
			continue
		}
		for i, wait := range a.waits {
			if wait > 0 {
				refused[a.ids[i]] = &limited{wait}
			} else {
				t.groups = append(t.groups, a.groups[i])
			}
			switch {
			case a.back[i] && wait > 0 && first == "":
				first, group = a.ids[i], a.groups[i]
			case a.back[i]: // it was told when to ask
			case wait > 0:
				news++
			default:
				let = true
			}
		}
	}
	if failed != nil {
		r.process.OpFailed("ask for groups", r.Shard, failed)
		t.give()
		pause(r.work, paceAgain)
		r.unstart(batch, t)
		return false, true
	}
	r.process.OpDone("ask for groups", r.Shard)
	r.mu.Lock()
	r.state.refuse(news, let)
	r.mu.Unlock()
	if first == "" || len(refused) < len(batch.Jobs) || !r.mayLinger(t) {
		return r.putOff(refused, batch, t), true
	}
	wait := refused[first].(*limited).wait
	delete(refused, first)
	r.putOff(refused, batch, t)
	if w := r.linger(t, first, group, by); w != nil && r.awaitPermit(t, w) {
		return true, true
	}
	refused = lowkiq.Failed{first: &limited{max(wait-(r.process.Now()-t.admitted), time.Millisecond)}}
	return r.putOff(refused, batch, t), true
}

// putOff puts those back that their groups do not let begin. It reports whether others are left.
func (r *Runner) putOff(refused lowkiq.Failed, batch *lowkiq.Batch, t *turn) (left bool) {
	return r.without(refused, batch, t)
}

// backlogBack puts what a pop has brought of groups that are full back together: else a backlog of such a group would go through the
// lanes batch by batch, before others of the shard that came after it. What was told before when to ask again is left to lanes, for it may be its
// turn. Where groups have a rate none goes back: what that lets go is used at once, or never. It reports whether there was any. mu is held, and
// let go meanwhile.
func (r *Runner) backlogBack() bool {
	s, g, of := &r.state, &r.queue.live.groups, r.queue.rules()
	if !s.backlog(of) || s.phase == quarantined {
		return false
	}
	waits := s.flights.jobs()
	parts := s.flights.cut(queue.GroupsAtOnce, func(id string) bool {
		group := of.Groups.Of(id)
		return group != "" && g.refuses(id, group) && !of.Held.Holds(id)
	})
	if 2*len(parts) < waits {
		s.refused = 0
	}
	if len(parts) == 0 {
		return false
	}
	r.mu.Unlock()
	nacks, left := r.askForBacklog(of.Groups, parts)
	sent := len(nacks) > 0 && r.send("nack", len(nacks), func(ctx context.Context) error { return second(r.claim.Nack(ctx, nacks...)) })
	if sent {
		r.queue.postponed(nacks)
	}
	r.mu.Lock()
	s.flights.waiting = append(left, s.flights.waiting...)
	if sent {
		for i := range nacks {
			s.alarm.set(nacks[i].Delay)
			s.close(nacks[i].Flight, 1)
		}
		s.change(flightEnds) // an id in quarantine may wait for that
	}
	return true
}

// askForBacklog asks when these may begin. What may now is left for lanes, which ask for it once more, with a call at hand.
func (r *Runner) askForBacklog(by rules.Groups, parts []flight) (nacks []queue.Nack, left []flight) {
	jobs := make([]lowkiq.Job, len(parts))
	for i := range parts {
		jobs[i] = parts[i].jobs[0]
	}
	a, g := groupAsks(by, jobs)[0], &r.queue.live.groups // all have a group, and they are no more than one asks for
	if g.ask(a) {
		r.process.Lanes.Go(r.queue.sendGroups)
	}
	<-a.done
	if a.err != nil {
		g.notFull(a.groups...)
		return nil, parts
	}
	var free []string
	for i, part := range parts {
		if a.waits[i] == 0 {
			free, left = append(free, a.groups[i]), append(left, part)
		} else {
			nacks = append(nacks, (&limited{a.waits[i]}).verdict(part.number, &jobs[i]).nack)
		}
	}
	if len(free) > 0 {
		g.notFull(free...)
		if g.end(free, 0, by.Limit) {
			r.process.Lanes.Go(r.queue.sendGroups)
		}
	}
	return nacks, left
}

// groupAsks are what is to be asked of some jobs, as much at once as a request may be about.
func groupAsks(by rules.Groups, jobs []lowkiq.Job) (asks []*groupAsk) {
	for i := range jobs {
		group := by.Of(jobs[i].ID)
		if group == "" {
			continue
		}
		if n := len(asks); n == 0 || len(asks[n-1].ids) == queue.GroupsAtOnce {
			asks = append(asks, &groupAsk{done: make(chan struct{})})
		}
		a := asks[len(asks)-1]
		a.ids, a.groups = append(a.ids, jobs[i].ID), append(a.groups, group)
	}
	return asks
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// keepGroups is for how long a lane keeps what its ids were granted, and has no call: by then what a rate has let go would come
// beside what it lets go after it, and others can use what bounds calls at once.
const keepGroups = 50 * time.Millisecond

// leaveGroups notes that the call of a lane has ended, and that of its ids; or that none begins.
func (r *Runner) leaveGroups(t *turn) {
	if t.groups == nil {
		return
	}
	took := time.Duration(0)
	if began := t.began.Load(); began != 0 {
		took = r.process.Now() - time.Duration(began)
	}
	if r.queue.live.groups.end(t.groups, took, r.queue.rules().Groups.Limit) {
		r.process.Lanes.Go(r.queue.sendGroups)
	}
	t.groups = nil
}

// limited is the failure of a job whose group lets no more begin now.
type limited struct{ wait time.Duration }

func (l *limited) Error() string { return "limited: its group is at its limit" }

func (l *limited) verdict(flight int64, job *lowkiq.Job) verdict {
	return verdict{err: l, nack: queue.Nack{
		Flight: flight, ID: job.ID, Kind: queue.Postpone, RetryCount: job.RetryCount, Delay: l.wait, Limited: true}}
}
