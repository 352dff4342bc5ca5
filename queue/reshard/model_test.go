package reshard_test

import (
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/explore"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// This model is the argument for the change of a queue's number of shards. The words of the protocol are freeze, flip,
// copy and open.
//
// A queue has a layout, which is a number and a set of shards with keys of their own. An attempt to reshard gives the
// queue the next layout. Layout numbers never come again, also if an attempt is cancelled. The attempt takes these steps.
//
//  1. Begin. The queue's entry in the registry names the attempt, which is the number of its layout.
//  2. Prepare. Each new shard is closed: it refuses claims, so nobody handles its jobs. A shard that was ever used is
//     not closed again.
//  3. Freeze. Each old shard gets the attempt's number as its mark, and its jobs are renamed. A shard with a flight, or
//     with another mark, refuses. A frozen shard refuses pushes, deliveries, claims and all that an owner sends, and its
//     jobs do not change any more.
//  4. Floors. The next score and the next fence of each new shard are raised above those of all old shards.
//  5. Flip. The entry gets the new layout, if its text is still that of this attempt. From here pushes go to the new
//     shards, where they wait.
//  6. Copy. The jobs of a frozen shard are its entries. Each has a number, its rank. A new shard remembers the rank that
//     it took last from each old shard, takes an entry of a higher rank, and passes over the others. The next entry is
//     sent after the answer to the entry before it.
//  7. Open. A new shard that has all entries of all its parents is opened: it can be claimed, and takes no entry any more.
//  8. Drop. The jobs of an old shard are deleted after all its children are open.
//
// Until the flip, anybody may cancel the attempt. The entry forgets it first; then the marks are taken away, by their
// number. Whoever meets a mark reads the entry afterwards. If the entry knows nothing of the mark's number, it belongs
// to a cancelled attempt, and goes as well.
//
// No process has a special role. Each step is found from the entry and the shards, by any number of drivers, which die
// and are frozen. So a request that somebody was once right to send may arrive at any later time, and any number of
// times. The model does not store what was sent if the reason for it never ends: then the request is always possible.
//
// Processes that have not heard of the reshard go on pushing to old shards, delivering to them, claiming them, popping,
// and dying. Shards have clocks apart, since they may lie in different Redis servers.
//
// Four things make the model small and its answer large: any number of faults and of attempts.
//
//   - Scores and fences are compared only between an old shard and its children. So they are no numbers. A new shard
//     knows whether its next score, and its next fence, are above all of its parents. If not, its clock is behind.
//   - Of the layouts only the current attempt's has state. The shards of cancelled attempts have other keys, and
//     nobody looks at them. Of their marks and late requests it matters only that their number is another.
//   - The marks have three values: none, that of the current attempt, and that of an older attempt.
//   - The content of a frozen shard does not change, so a late entry needs no memory.
//
// Outside the model lie a Redis that forgets what it has acknowledged, equal payloads, jobs that come in parts, and the
// other fields of a job. They have tests.

// rule is a rule of the protocol that the model can do without, to see it fail.
type rule int

const (
	allRules rule = iota
	freezeWaits
	frozenRefusesPushes
	frozenRefusesDeliveries
	frozenRefusesOwners
	freezeRefusesMarks
	freezeBeforeFlip
	scoresFloor
	fencesFloor
	floorIsWritten
	closedRefusesClaims
	usedIsNotClosed
	flipComparesText
	flipAfterFloors
	freshNumber
	thawComparesNumber
	thawAfterEntry
	thawKeepsFence
	lookAtOld
	takeOncePerRank
	takeInOrder
	oldBeforeEqual
	openTakesNothing
	openAfterLast
	openAfterAllParents
	dropAfterOpen
	dropAfterAllChildren
	ruleCount
)

var ruleNames = [ruleCount]string{
	"all rules",
	"freeze refuses a shard with a flight",
	"a frozen shard refuses pushes",
	"a frozen shard refuses deliveries",
	"a frozen shard refuses its owner",
	"freeze refuses another attempt's mark",
	"all old shards are frozen before the flip",
	"the floor raises scores",
	"the floor raises fences",
	"the floor is written also for a queue without pushes",
	"a closed shard refuses claims",
	"a used shard is not closed again",
	"the flip compares the entry's text",
	"the flip waits for the floors",
	"a layout's number never comes again",
	"a thaw compares the mark's number",
	"the entry is read after the mark, before a thaw",
	"a thaw keeps the fence",
	"a delivery looks at the old shard first",
	"each rank is taken once",
	"an entry waits for the answer to the entry before it",
	"at equal scores the old shard's payloads go first",
	"an open shard takes nothing",
	"a shard opens after the last entry",
	"a shard opens after all its parents",
	"an old shard is dropped after its child is open",
	"an old shard is dropped after all its children are open",
}

// Objections.
const (
	inFlightTwice  = "I1: an id is in flight twice"
	lost           = "I2: a payload is lost"
	overtaken      = "I3: a payload overtakes an earlier payload"
	doneIsBack     = "an ended payload is back"
	fenceFalls     = "a handler sees a lower fence than the handler before it"
	deliveredTwice = "a delivery is stored twice"
	stuckReshard   = explore.Stuck + ": " + resharded
	stuckCancel    = explore.Stuck + ": " + cancelled
	resharded      = "all is handled, and the reshard is done"
	cancelled      = "all is handled, and no reshard is begun"
)

// scenario is what the model explores.
type scenario struct {
	name     string
	routes   []route
	payloads int  // of each id
	equal    bool // producers give all payloads of an id the same score; otherwise each has the default score
	deliver  bool // the first id gets a numbered delivery as well
	deletes  bool // people delete what waits in new shards
}

// route is the way of an id from its old shard to its new shard.
type route struct{ old, fresh int }

const (
	maxIDs    = 3
	maxShards = 2 // of a layout
)

// set is a set of payloads, or of shards.
type set uint8

func (s set) has(i int) bool { return s&(1<<i) != 0 }

// mark is the mark of an old shard.
type mark uint8

const (
	unmarked mark = iota
	current       // the number of the current attempt
	older         // that of an earlier attempt
)

// oldShard is a shard of the old layout.
type oldShard struct {
	mark      mark
	dropped   bool // its jobs are deleted; its mark stays
	owned     bool
	lowFence  bool // its next fence may be below its last
	delivered bool // it has stored the delivery
}

// freshShard is a shard of the current attempt's layout.
type freshShard struct {
	coming    bool // it is closed
	used      bool // its last score is written
	floored   bool // a driver had the answer to the floor
	scores    bool // its next score is above all scores of its parents
	fences    bool // its next fence is above all fences of its parents
	owned     bool
	delivered bool
	taken     [maxShards]uint8 // by old shard: the rank that was taken last
	over      set              // the old shards whose last entry it has
}

// ident is an id, and where its payloads are. Payloads are numbered in the order of their pushes.
type ident struct {
	pushed           uint8 // the number of pushed payloads
	old, oldFlight   set   // in the old shard: waiting, in flight
	fresh, newFlight set   // in the new shard
	done             set   // handled, and acknowledged; or deleted by a person
	pushedNew, low   set   // pushed to the new shard; of these, with a score below those of the old shard
	handedOld        bool  // a handler has seen a fence of the old shard
}

// modelState is a state of the model. The shards are those of the old and of the current attempt's layout.
type modelState struct {
	begun   bool // there was an attempt
	earlier bool // there was more than one
	on      bool // the entry names the current attempt
	flipped bool // the entry has the current attempt's layout
	swap    bool // a driver has sent the flip
	ended   bool // the entry says that all is copied, and no driver is left
	thaw    set  // old shards for which somebody has sent a thaw of the current attempt's mark
	asked   bool // the delivery was sent to the new shard
	told    bool // its sender knows that it was stored
	wrong   uint8
	old     [maxShards]oldShard
	fresh   [maxShards]freshShard
	ids     [maxIDs]ident
}

// reshardModel is the model of a scenario without one rule.
type reshardModel struct {
	scenario
	without  rule
	parents  [maxShards]set              // by new shard
	children [maxShards]set              // by old shard
	rank     [maxIDs]uint8               // by id: the rank of its entry among those for its new shard
	last     [maxShards][maxShards]uint8 // by old and new shard: the last rank
}

func newReshardModel(s scenario, without rule) *reshardModel {
	p := &reshardModel{scenario: s, without: without}
	for i, r := range s.routes {
		p.parents[r.fresh] |= 1 << r.old
		p.children[r.old] |= 1 << r.fresh
		p.last[r.old][r.fresh]++
		p.rank[i] = p.last[r.old][r.fresh]
	}
	return p
}

func (p *reshardModel) model() explore.Model[modelState] {
	return explore.Model[modelState]{
		Steps: func(s modelState) []explore.Event[modelState] {
			b := branches{reshardModel: p, modelState: s, events: make([]explore.Event[modelState], 0, 24)}
			for i := range p.routes {
				b.produce(i)
			}
			if p.deliver {
				b.sendDelivery()
			}
			for k := range maxShards {
				if p.children[k] != 0 {
					b.workOld(k)
				}
				if p.parents[k] != 0 {
					b.workNew(k)
				}
			}
			b.decide()
			b.freeze()
			b.flip()
			b.copyEntries()
			return b.events
		},
		Wrong: p.wrong,
		Goals: []explore.Goal[modelState]{
			{Name: resharded, Is: func(s modelState) bool { return p.handled(s) && p.resharded(s) && s.ended }},
			{
				Name: cancelled, From: func(s modelState) bool { return !s.flipped },
				Is: func(s modelState) bool { return p.handled(s) && !s.on && !s.flipped && p.marked(s, unmarked) },
			},
		},
		Max: 6_000_000,
	}
}

// branches collects what may happen in a state.
type branches struct {
	*reshardModel
	modelState
	events []explore.Event[modelState]
}

func (b *branches) add(what string, next modelState) {
	b.events = append(b.events, explore.Event[modelState]{What: what, Next: next})
}

func (b *branches) fault(what string, next modelState) {
	b.events = append(b.events, explore.Event[modelState]{What: what, Next: next, Fault: true})
}

// request adds a request of a driver. Once nobody has a reason to send it, it comes late, and nothing may count on it.
func (b *branches) request(what string, reason bool, next modelState) {
	b.events = append(b.events, explore.Event[modelState]{What: what, Next: next, Fault: !reason})
}

// rules reports whether the rule holds.
func (p *reshardModel) rules(r rule) bool { return p.without != r }

// produce pushes the next payload of an id, by any process that pushes for it. Some know the new layout.
func (b *branches) produce(i int) {
	r, id := b.routes[i], b.ids[i]
	if int(id.pushed) == b.payloads {
		return
	}
	if b.old[r.old].mark == unmarked || !b.rules(frozenRefusesPushes) {
		next := b.modelState
		next.ids[i].pushed++
		next.ids[i].old |= 1 << id.pushed
		for k := range next.fresh {
			next.fresh[k].scores = false
		}
		b.add("a push to the old shard", next)
	}
	if b.flipped {
		next := b.modelState
		to := &next.ids[i]
		to.pushed++
		to.fresh |= 1 << id.pushed
		to.pushedNew |= 1 << id.pushed
		if !b.fresh[r.fresh].scores {
			to.low |= 1 << id.pushed
		}
		next.fresh[r.fresh].used = true
		b.add("a push to the new shard", next)
	}
}

// sendDelivery stores a delivery, whose sender does not know where it was stored before.
func (b *branches) sendDelivery() {
	r := b.routes[0]
	old, fresh := b.old[r.old], b.fresh[r.fresh]
	if !old.delivered && (old.mark == unmarked || !b.rules(frozenRefusesDeliveries)) {
		next := b.modelState
		next.old[r.old].delivered = true
		b.add("a delivery to the old shard", next)
	}
	if b.flipped && !b.asked && (!old.delivered || !b.rules(lookAtOld)) {
		next := b.modelState
		next.asked = true
		b.add("a look at the old shard, before a delivery to the new shard", next)
	}
	if b.asked && !fresh.delivered {
		next := b.modelState
		next.fresh[r.fresh].delivered = true
		b.add("a delivery to the new shard", next)
	}
	looked := b.flipped && b.rules(lookAtOld)
	if !b.told && (old.delivered && (old.mark == unmarked || looked) || b.asked && fresh.delivered) {
		next := b.modelState
		next.told = true
		b.add("the answer to the delivery", next)
	}
}

// workOld is what the owner of an old shard may do. It does not know of the reshard.
func (b *branches) workOld(k int) {
	shard := b.old[k]
	if shard.mark != unmarked && b.rules(frozenRefusesOwners) || shard.dropped {
		return
	}
	if !shard.owned {
		next := b.modelState
		next.old[k].owned = true
		for i, r := range b.routes {
			if r.old == k {
				next.ids[i].old |= next.ids[i].oldFlight
				next.ids[i].oldFlight = 0
			}
		}
		for c := range next.fresh {
			next.fresh[c].fences = false
		}
		b.add("a claim of the old shard", next)
		return
	}
	next := b.modelState
	next.old[k].owned = false
	b.fault("the old shard's owner dies", next)
	for i, r := range b.routes {
		id := b.ids[i]
		if r.old != k {
			continue
		}
		if id.oldFlight == 0 && id.old != 0 {
			next := b.modelState
			to := &next.ids[i]
			to.old, to.oldFlight, to.handedOld = 0, id.old, true
			next.wrong = b.hand(id, id.old, to.newFlight != 0, shard.lowFence && id.handedOld)
			b.add("a pop from the old shard", next)
		}
		if id.oldFlight != 0 {
			next := b.modelState
			to := &next.ids[i]
			to.oldFlight, to.done = 0, id.done|id.oldFlight
			b.add("an ack to the old shard", next)
			to.old, to.oldFlight, to.done = id.old|id.oldFlight, 0, id.done
			b.fault("a nack to the old shard", next)
		}
	}
}

// workNew is what the owner of a new shard may do, and people.
func (b *branches) workNew(k int) {
	shard := b.fresh[k]
	if !b.flipped {
		return
	}
	if b.deletes {
		for i, r := range b.routes {
			if r.fresh == k && b.ids[i].fresh != 0 {
				next := b.modelState
				next.ids[i].fresh, next.ids[i].done = 0, b.ids[i].done|b.ids[i].fresh
				b.add("a person deletes an id of the new shard", next)
			}
		}
	}
	if !shard.owned {
		if shard.coming && b.rules(closedRefusesClaims) {
			return
		}
		next := b.modelState
		next.fresh[k].owned = true
		for i, r := range b.routes {
			if r.fresh == k {
				next.ids[i].fresh |= next.ids[i].newFlight
				next.ids[i].newFlight = 0
			}
		}
		b.add("a claim of the new shard", next)
		return
	}
	next := b.modelState
	next.fresh[k].owned = false
	b.fault("the new shard's owner dies", next)
	for i, r := range b.routes {
		id := b.ids[i]
		if r.fresh != k {
			continue
		}
		if id.newFlight == 0 && id.fresh != 0 {
			next := b.modelState
			next.ids[i].fresh, next.ids[i].newFlight = 0, id.fresh
			next.wrong = b.hand(id, id.fresh, id.oldFlight != 0, !shard.fences && id.handedOld)
			b.add("a pop from the new shard", next)
		}
		if id.newFlight != 0 {
			next := b.modelState
			to := &next.ids[i]
			to.newFlight, to.done = 0, id.done|id.newFlight
			b.add("an ack to the new shard", next)
			to.fresh, to.newFlight, to.done = id.fresh|id.newFlight, 0, id.done
			b.fault("a nack to the new shard", next)
		}
	}
}

// Codes of what hand objects to.
var handed = [...]string{"", inFlightTwice, fenceFalls, doneIsBack, overtaken}

// hand returns what is wrong with a batch, as the place of the objection in handed.
func (b *branches) hand(id ident, batch set, twice, falls bool) uint8 {
	switch {
	case twice:
		return 1
	case falls:
		return 2
	case batch&id.done != 0:
		return 3
	}
	groups := [3]set{batch & id.low, batch &^ id.pushedNew, batch & id.pushedNew &^ id.low}
	if b.equal {
		groups = [3]set{batch &^ id.pushedNew, batch & id.pushedNew}
		if !b.rules(oldBeforeEqual) {
			groups[0], groups[1] = groups[1], groups[0]
		}
	}
	before := id.done
	for _, group := range groups {
		for n := range b.payloads {
			if !group.has(n) {
				continue
			}
			if earlier := set(1)<<n - 1; earlier&^before != 0 {
				return 4
			}
			before |= 1 << n
		}
	}
	return 0
}

// decide is what people and drivers decide: to begin an attempt, to cancel it, and to thaw what a mark stops.
func (b *branches) decide() {
	if !b.on && !b.flipped {
		next := b.modelState
		next.on, next.begun = true, true
		if b.rules(freshNumber) {
			next.earlier = b.begun
			for k := range next.old {
				if b.old[k].mark == current {
					next.old[k].mark = older
				}
			}
			next.fresh, next.thaw = [maxShards]freshShard{}, 0
			next.swap = b.swap && !b.rules(flipComparesText)
		}
		b.add("an attempt begins", next)
	}
	if b.on {
		next := b.modelState
		next.on = false
		b.add("the attempt is cancelled", next)
	}
	for k := range b.old {
		if b.old[k].mark == current && !b.thaw.has(k) && (b.begun && !b.on && !b.flipped || !b.rules(thawAfterEntry)) {
			next := b.modelState
			next.thaw |= 1 << k
			b.add("the current mark is found without its attempt", next)
		}
	}
}

// freeze freezes and thaws old shards. A request of an earlier attempt is always possible.
func (b *branches) freeze() {
	for k, shard := range b.old {
		if b.children[k] == 0 || shard.dropped {
			continue
		}
		for _, by := range [...]mark{current, older} {
			if by == current && !b.begun || by == older && !b.earlier {
				continue
			}
			free := shard.mark == unmarked || shard.mark != by && !b.rules(freezeRefusesMarks)
			if free && (b.quiet(k) || !b.rules(freezeWaits)) {
				next := b.modelState
				next.old[k].mark, next.old[k].owned = by, shard.owned && !b.rules(frozenRefusesOwners)
				b.request("a freeze by the "+by.String()+" number", by == current && b.on, next)
			}
			sent := by == older || b.thaw.has(k)
			if sent && shard.mark != unmarked && (shard.mark == by || !b.rules(thawComparesNumber)) {
				next := b.modelState
				next.old[k].mark = unmarked
				next.old[k].lowFence = !b.rules(thawKeepsFence)
				b.add("a thaw by the "+by.String()+" number", next)
			}
		}
	}
}

func (m mark) String() string { return [...]string{"no", "current", "older"}[m] }

// quiet reports whether an old shard has no flight.
func (b *branches) quiet(k int) bool {
	for i, r := range b.routes {
		if r.old == k && b.ids[i].oldFlight != 0 {
			return false
		}
	}
	return true
}

// marked reports whether all old shards have the mark.
func (p *reshardModel) marked(s modelState, want mark) bool {
	for k, shard := range s.old {
		if p.children[k] != 0 && shard.mark != want {
			return false
		}
	}
	return true
}

// flip prepares the new shards, raises their floors and gives the entry the new layout.
func (b *branches) flip() {
	frozen := b.marked(b.modelState, current) || !b.rules(freezeBeforeFlip)
	ready := b.on && !b.swap && frozen
	for k, shard := range b.fresh {
		if b.parents[k] == 0 || !b.begun {
			continue
		}
		if !shard.coming && (!shard.used || !b.rules(usedIsNotClosed)) {
			next := b.modelState
			next.fresh[k].coming = true
			b.request("a new shard is closed", b.on, next)
		}
		if frozen && (shard.coming || shard.used) {
			next := b.modelState
			to := &next.fresh[k]
			to.floored = true
			to.used = shard.used || b.rules(floorIsWritten) || b.anyPushed()
			to.scores = shard.scores || b.rules(scoresFloor)
			to.fences = shard.fences || b.rules(fencesFloor)
			b.request("the floor of a new shard", b.on, next)
		}
		ready = ready && shard.coming && (shard.floored || !b.rules(flipAfterFloors))
	}
	if ready {
		next := b.modelState
		next.swap = true
		b.add("the flip is sent", next)
	}
	if b.swap && !b.flipped && (b.on || !b.rules(flipComparesText)) {
		next := b.modelState
		next.on, next.flipped = false, true
		b.add("the flip", next)
	}
}

func (b *branches) anyPushed() bool {
	for _, id := range b.ids {
		if id.pushed > 0 {
			return true
		}
	}
	return false
}

// copyEntries copies entries, opens new shards and drops old shards.
func (b *branches) copyEntries() {
	if !b.flipped {
		return
	}
	for i, r := range b.routes {
		shard := b.fresh[r.fresh]
		known := shard.taken[r.old]
		// A driver has had the answer to the entry before. An open shard has forgotten which it took.
		sent := known+1 >= b.rank[i] || !shard.coming || !b.rules(takeInOrder)
		takes := shard.coming && (known < b.rank[i] || !b.rules(takeOncePerRank)) || !shard.coming && !b.rules(openTakesNothing)
		if sent && takes && b.old[r.old].mark == current {
			next := b.modelState
			next.ids[i].fresh |= b.ids[i].old
			next.fresh[r.fresh].taken[r.old] = max(known, b.rank[i])
			b.request("an entry is taken", !b.ended && !b.old[r.old].dropped, next)
		}
	}
	for k, shard := range b.fresh {
		for from := range b.old {
			all := shard.taken[from] == b.last[from][k] || !b.rules(openAfterLast)
			if !b.parents[k].has(from) || !shard.coming || shard.over.has(from) || !all {
				continue
			}
			next := b.modelState
			to := &next.fresh[k]
			to.over |= 1 << from
			if to.over == b.parents[k] || !b.rules(openAfterAllParents) {
				to.coming, to.over, to.taken = false, 0, [maxShards]uint8{}
			}
			b.request("an old shard is over for a new shard", !b.ended, next)
		}
	}
	for k, shard := range b.old {
		open := b.openChildren(k)
		all := open == b.children[k] || open != 0 && !b.rules(dropAfterAllChildren) || !b.rules(dropAfterOpen)
		if b.children[k] != 0 && !shard.dropped && all {
			next := b.modelState
			next.old[k].dropped = true
			b.request("an old shard is dropped", !b.ended, next)
		}
	}
	if !b.ended && b.resharded(b.modelState) {
		next := b.modelState
		next.ended = true
		b.add("the entry says that all is copied", next)
	}
}

// openChildren returns the open new shards of an old shard.
func (b *branches) openChildren(k int) (open set) {
	for c, shard := range b.fresh {
		if b.children[k].has(c) && !shard.coming {
			open |= 1 << c
		}
	}
	return open
}

// wrong returns the promise that a state breaks.
func (p *reshardModel) wrong(s modelState) string {
	if s.wrong != 0 {
		return handed[s.wrong]
	}
	for i, r := range p.routes {
		id := s.ids[i]
		there := id.done | id.fresh | id.newFlight | id.oldFlight
		if !s.old[r.old].dropped {
			there |= id.old
		}
		if all := set(1)<<id.pushed - 1; all&^there != 0 {
			return lost
		}
	}
	if r := p.routes[0]; s.old[r.old].delivered && s.fresh[r.fresh].delivered {
		return deliveredTwice
	}
	return ""
}

// handled reports whether all payloads are handled, and the delivery is answered.
func (p *reshardModel) handled(s modelState) bool {
	for i := range p.routes {
		if id := s.ids[i]; int(id.pushed) < p.payloads || id.done != 1<<id.pushed-1 {
			return false
		}
	}
	return s.told || !p.deliver
}

// resharded reports whether nothing of the reshard is left to do.
func (p *reshardModel) resharded(s modelState) bool {
	for k := range maxShards {
		if p.children[k] != 0 && !s.old[k].dropped || s.fresh[k].coming {
			return false
		}
	}
	return s.flipped
}

// The scenarios. Two ids with the same way are entries of one old shard.
var (
	pushes   = scenario{name: "an id", routes: []route{{0, 0}}, payloads: 4}
	equal    = scenario{name: "an id with equal scores", routes: []route{{0, 0}}, payloads: 4, equal: true, deletes: true}
	delivery = scenario{name: "an id with a delivery", routes: []route{{0, 0}}, payloads: 2, deliver: true}
	joined   = scenario{name: "two parents of a shard", routes: []route{{0, 0}, {1, 0}}, payloads: 2}
	split    = scenario{name: "two children of a shard", routes: []route{{0, 0}, {0, 1}}, payloads: 2}
	entries  = scenario{name: "two entries of a shard", routes: []route{{0, 0}, {0, 0}}, payloads: 2}
)

// large are scenarios with more states.
var large = []scenario{
	{name: "two parents, deletions and a delivery", routes: []route{{0, 0}, {1, 0}}, payloads: 2, deliver: true, deletes: true},
	{name: "two children, deletions and a delivery", routes: []route{{0, 0}, {0, 1}}, payloads: 2, deliver: true, deletes: true},
	{name: "three ids between two old and two new shards", routes: []route{{0, 0}, {0, 1}, {1, 1}}, payloads: 1},
}

func TestReshardModel(t *testing.T) {
	t.Parallel()
	for _, s := range append([]scenario{pushes, equal, delivery, joined, split, entries}, tier.Of(nil, nil, large)...) {
		t.Run(s.name, func(t *testing.T) {
			got := explore.Explore(newReshardModel(s, allRules).model())
			if got.Wrong != "" {
				t.Fatalf("%d states: %s", got.States, got)
			}
			t.Logf("%d states visited", got.States)
		})
	}
}

// TestReshardRules leaves out each rule once. The model must object.
func TestReshardRules(t *testing.T) {
	t.Parallel()
	tests := []struct {
		without  rule
		scenario scenario
		want     string
	}{
		{freezeWaits, pushes, inFlightTwice},
		{frozenRefusesPushes, pushes, lost},
		{frozenRefusesDeliveries, delivery, deliveredTwice},
		{frozenRefusesOwners, pushes, lost},
		{freezeRefusesMarks, pushes, overtaken},
		{freezeBeforeFlip, pushes, overtaken},
		{scoresFloor, pushes, overtaken},
		{fencesFloor, pushes, fenceFalls},
		{floorIsWritten, pushes, stuckReshard},
		{closedRefusesClaims, pushes, overtaken},
		{usedIsNotClosed, pushes, doneIsBack},
		{flipComparesText, pushes, lost},
		{flipAfterFloors, pushes, overtaken},
		{freshNumber, pushes, overtaken},
		{thawComparesNumber, pushes, overtaken},
		{thawAfterEntry, pushes, overtaken},
		{thawKeepsFence, pushes, fenceFalls},
		{lookAtOld, delivery, deliveredTwice},
		{takeOncePerRank, equal, doneIsBack},
		{takeInOrder, entries, lost},
		{oldBeforeEqual, equal, overtaken},
		{openTakesNothing, pushes, doneIsBack},
		{openAfterLast, pushes, lost},
		{openAfterAllParents, joined, lost},
		{dropAfterOpen, pushes, lost},
		{dropAfterAllChildren, split, lost},
	}
	tried := map[rule]bool{}
	for _, tt := range tests {
		tried[tt.without] = true
		t.Run(ruleNames[tt.without], func(t *testing.T) {
			got := explore.Explore(newReshardModel(tt.scenario, tt.without).model())
			if got.Wrong != tt.want {
				t.Fatalf("without this rule, %d states: got %s\nwant %s", got.States, got, tt.want)
			}
			t.Logf("without this rule, after %d states: %s", got.States, got)
		})
	}
	for r := allRules + 1; r < ruleCount; r++ {
		if !tried[r] {
			t.Errorf("no case leaves out: %s", ruleNames[r])
		}
	}
}
