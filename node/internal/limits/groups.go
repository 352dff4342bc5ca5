package limits

import (
	"maps"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq/internal/verdict"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// A request to Redis has the number of ids in calls on this node for each group, including all granted ids. So a request
// makes up for a lost answer to the request before it. See lua/group.lua.

// AskGroups sends a request to Redis; see protocol.Client.AskGroups.
type AskGroups func(*protocol.GroupRequest) ([]protocol.GroupGrant, error)

// groups has the state of a queue's groups on this node.
type groups struct {
	mu         sync.Mutex
	asks       []*groupAsk              // questions of waiting lanes; guarded by mu
	busy       map[string]int           // by group: granted ids whose calls have not ended; guarded by mu
	unreported map[string]time.Duration // groups to report to Redis, and how long to stop them; guarded by mu
	again      map[string]bool          // ids that were told when to ask again; guarded by mu
	full       map[string]fullGroup     // groups that have refused an id; guarded by mu
	callTime   time.Duration            // running mean of the duration of calls; guarded by mu
	asking     bool                     // a goroutine sends requests; guarded by mu
	number     int64                    // of the last request; guarded by mu
	asked      time.Time                // time of the last request; guarded by mu
}

// fullGroup is a group that has refused an id.
type fullGroup struct {
	until time.Time // when ids may ask that were not told a time
	since time.Time // time of the first refusal after the last grant; zero without a refusal
}

// groupAsk is the question of a lane.
type groupAsk struct {
	ids, groups []string
	again       []bool // for each id, whether it asks again because it was told to

	done  chan struct{}
	waits []time.Duration // for each id, 0 if it may begin, and otherwise the time until it may ask again
	err   error
}

// maxAgainIDs bounds the ids that were told to ask again. A forgotten id asks as if for the first time.
const maxAgainIDs = 100_000

// fullFor is how long after a refusal RefusesID reports that the group would refuse other ids. Waiting jobs of
// such ids ask together, and no lane holds the resources of a call for them meanwhile.
const fullFor = time.Second

// keepFull is how long after fullFor a full group is remembered. It is longer than ids usually wait to ask again.
const keepFull = time.Minute

// maxWait bounds the time until an id may ask again.
const maxWait = time.Hour

// reportInterval is the interval of reports about groups with long calls. Redis forgets a group after an hour.
const reportInterval = 10 * time.Minute

// addAsk adds the question of a lane. It reports whether the caller must send requests.
func (g *groups) addAsk(a *groupAsk) (send bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range a.ids {
		a.again = append(a.again, g.again[id])
	}
	g.asks = append(g.asks, a)
	return g.startAsking()
}

// startAsking reports whether the caller must send requests, because no other goroutine does. The caller holds mu.
func (g *groups) startAsking() bool {
	first := !g.asking
	g.asking = true
	return first
}

// endCalls records the end of calls. It reports whether the caller must send requests.
func (q *Queue) endCalls(of []string, took time.Duration) (send bool) {
	g := &q.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	limit := q.groupLimit() // it changes only while mu is held
	if g.callTime == 0 {
		g.callTime = took
	}
	if took > 0 { // there was a call
		g.callTime += (took - g.callTime) / 8
	}
	for _, group := range of {
		if g.busy[group]--; g.busy[group] <= 0 {
			delete(g.busy, group)
		}
		if limit.Concurrency > 0 {
			g.reportGroup(group, 0)
		}
	}
	return limit.Concurrency > 0 && g.startAsking()
}

// stopGroup makes the next request stop a group for some time. It reports whether the caller must send requests.
func (g *groups) stopGroup(group string, d time.Duration) (send bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reportGroup(group, d)
	return g.startAsking()
}

// reportGroup makes the next request report a group. The caller holds mu.
func (g *groups) reportGroup(group string, stop time.Duration) {
	if g.unreported == nil {
		g.unreported = map[string]time.Duration{}
	}
	g.unreported[group] = max(g.unreported[group], min(stop, verdict.MaxStop))
}

// mustReport reports whether the caller must send requests, because some have failed, or because calls are long.
func (g *groups) mustReport() (send bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.busy) > 0 && time.Since(g.asked) > reportInterval {
		g.reportBusy()
	}
	return len(g.unreported) > 0 && g.startAsking()
}

// reportBusy makes requests report all groups with running calls. The caller holds mu.
func (g *groups) reportBusy() {
	for group := range g.busy {
		g.reportGroup(group, 0)
	}
}

// nextRequest returns the next request, and the questions in it, or nil if there is nothing to ask or to report. The caller holds mu.
func (g *groups) nextRequest(limit rules.Limit) (r *protocol.GroupRequest, asks []*groupAsk) {
	at := map[string]int{}
	r = &protocol.GroupRequest{Limit: limit}
	want := func(group string) *protocol.GroupWant {
		i, there := at[group]
		if !there {
			i = len(r.Groups)
			at[group] = i
			r.Groups = append(r.Groups, protocol.GroupWant{Group: group, Busy: g.busy[group], Stop: g.unreported[group], Spacing: g.askSpacing(group, limit)})
			delete(g.unreported, group)
		}
		return &r.Groups[i]
	}
	for len(g.asks) > 0 && (len(asks) == 0 || len(r.Groups)+len(g.asks[0].ids) <= protocol.GroupsAtOnce) {
		a := g.asks[0]
		asks, g.asks = append(asks, a), g.asks[1:]
		for i, group := range a.groups {
			if a.again[i] {
				want(group).Back++
			} else {
				want(group).New++
			}
		}
	}
	for group := range g.unreported {
		if len(r.Groups) >= protocol.GroupsAtOnce {
			break
		}
		want(group)
	}
	if len(r.Groups) == 0 {
		g.asking = false
		return nil, nil
	}
	g.number++
	r.Number, g.asked = g.number, time.Now()
	return r, asks
}

// askSpacing returns the time between two ids of a group that ask again.
//
// Ids should ask a bit more often than calls of the group end. After the end of a call no id of the group runs until the
// next id asks, which takes half of the spacing on average. So the spacing is a tenth of a call, unless all groups of
// the node would then send more than about 500 requests a second.
//
// If the group has let no id begin for a second and for the time of four calls, its calls are assumed to last that long.
// They may hang, or run on another node while no call has ended here. It is not assumed sooner, because the instance
// whose turn it is asks after one spacing, and the other instances leave it a permit until then.
//
// The caller holds mu.
func (g *groups) askSpacing(group string, limit rules.Limit) time.Duration {
	if limit.Concurrency == 0 {
		return 0
	}
	took := g.callTime
	if since := g.full[group].since; !since.IsZero() {
		if ago := time.Since(since); ago > max(4*took, time.Second) {
			took = ago
		} else if took == 0 {
			took = min(ago, 50*time.Millisecond)
		}
	}
	return min(took*6/10/time.Duration(limit.Concurrency), max(took/10, 2*time.Millisecond*time.Duration(len(g.busy))), 10*time.Second)
}

// applyGrants gives the lanes their answers. The caller holds mu.
func (g *groups) applyGrants(r *protocol.GroupRequest, asks []*groupAsk, grants []protocol.GroupGrant, err error) {
	at := map[string]int{}
	for i := range r.Groups {
		at[r.Groups[i].Group] = i
		if err != nil {
			g.reportGroup(r.Groups[i].Group, r.Groups[i].Stop)
		}
	}
	if err != nil { // lanes that have asked meanwhile get the error, too, because no other request may follow
		asks, g.asks = append(asks, g.asks...), nil
	}
	if len(g.again) > maxAgainIDs || g.again == nil {
		g.again = map[string]bool{}
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
			if a.again[i] {
				left, in = &grant.Back, &grant.BackIn
			}
			if *left > 0 {
				*left--
				g.setOpen(a.groups[i], !a.again[i])
				g.busy[a.groups[i]]++
				delete(g.again, id)
				continue
			}
			a.waits[i] = min(max(*in, time.Millisecond), maxWait)
			*in += r.Groups[at[a.groups[i]]].Gap(r.Limit)
			g.again[id] = true
			g.setFull(a.groups[i])
		}
		close(a.done)
	}
	g.asking = g.asking && err == nil // after an error the next question, or ReportGroups, sends again
}

// setFull records that a group has refused an id. The caller holds mu.
func (g *groups) setFull(group string) {
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

// setOpen records that a group has let an id begin. others means that ids may ask that were not told to ask again. The
// caller holds mu.
func (g *groups) setOpen(group string, others bool) {
	was, known := g.full[group]
	switch {
	case !known:
	case others:
		delete(g.full, group)
	default:
		g.full[group] = fullGroup{until: was.until}
	}
}

// anyFull reports whether a group refuses ids.
func (g *groups) anyFull() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for _, f := range g.full {
		if now.Before(f.until) {
			return true
		}
	}
	return false
}

// forgetFull lets ids of groups ask again.
func (g *groups) forgetFull(of ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, group := range of {
		delete(g.full, group)
	}
}

// refusesID reports whether the group would refuse an id, because it has just refused another id, and this id was not told to
// ask now.
func (g *groups) refusesID(id, group string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.again[id] && time.Now().Before(g.full[group].until)
}

// sendGroups sends requests until there is nothing to ask or to report.
func (q *Queue) sendGroups() {
	g := &q.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.asking {
		r, asks := g.nextRequest(q.groupLimit())
		if r == nil {
			return
		}
		g.mu.Unlock()
		grants, err := q.cfg.AskGroups(r)
		g.mu.Lock()
		g.applyGrants(r, asks, grants, err)
		if q.groupLimit() != r.Limit { // changed meanwhile: Redis may know nothing of these groups under the new limit
			for i := range r.Groups {
				g.reportGroup(r.Groups[i].Group, 0)
			}
			g.asking = true
		}
	}
}

// groupLimit returns the limit of each group that is in force.
func (q *Queue) groupLimit() rules.Limit { return q.rules.Load().groups.Limit }

// ReportGroups reports groups to Redis after failed requests, and before Redis forgets them. It must be called about once a second.
func (q *Queue) ReportGroups() {
	if q.groups.mustReport() {
		q.sendGroups()
	}
}

// MayBegin asks which ids their groups let begin, and waits for the answers. Ids without a group get no answer. An id that may
// begin counts as in a call until EndCalls, even if MayBegin returns an error about other ids.
func (q *Queue) MayBegin(ids []string) (answers []verdict.GroupAnswer, err error) {
	asks := groupAsks(q.rules.Load().groups, ids)
	send := false
	for _, a := range asks {
		send = q.groups.addAsk(a) || send
	}
	if send {
		q.cfg.Go(q.sendGroups)
	}
	for _, a := range asks {
		if <-a.done; a.err != nil {
			err = a.err
			continue
		}
		for i, id := range a.ids {
			answers = append(answers, verdict.GroupAnswer{ID: id, Group: a.groups[i], Again: a.again[i], Wait: a.waits[i]})
		}
	}
	return answers, err
}

// EndCalls records that calls have ended. groups has the group of each id. took is the duration of the calls, or 0 if no call
// has begun.
func (q *Queue) EndCalls(groups []string, took time.Duration) {
	if q.endCalls(groups, took) {
		q.cfg.Go(q.sendGroups)
	}
}

// StopGroup lets no id of a group begin for some time.
func (q *Queue) StopGroup(group string, d time.Duration) {
	if q.groups.stopGroup(group, d) {
		q.cfg.Go(q.sendGroups)
	}
}

// RefusesID reports whether the group of an id would refuse it, as far as this node knows.
func (q *Queue) RefusesID(id string) bool {
	group := q.rules.Load().groups.Of(id)
	return group != "" && q.groups.refusesID(id, group)
}

// MayBeginLater asks when ids may begin that no lane has. Ids that may begin now must ask again with MayBegin. After an error
// all ids must.
func (q *Queue) MayBeginLater(ids []string) ([]verdict.GroupAnswer, error) {
	answers, err := q.MayBegin(ids)
	if open := verdict.Admit(answers).Groups; len(open) > 0 {
		q.groups.forgetFull(open...)
		q.EndCalls(open, 0)
	}
	if err != nil {
		for _, id := range ids {
			q.groups.forgetFull(q.rules.Load().groups.Of(id))
		}
	}
	return answers, err
}

// groupAsks returns the questions about ids with a group. Each question fits into a request.
func groupAsks(by rules.Groups, ids []string) (asks []*groupAsk) {
	for _, id := range ids {
		group := by.Of(id)
		if group == "" {
			continue
		}
		if n := len(asks); n == 0 || len(asks[n-1].ids) == protocol.GroupsAtOnce {
			asks = append(asks, &groupAsk{done: make(chan struct{})})
		}
		a := asks[len(asks)-1]
		a.ids, a.groups = append(a.ids, id), append(a.groups, group)
	}
	return asks
}
