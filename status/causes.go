package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/identity"
	"github.com/lowkiq/lowkiq/internal/text/shell"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Instance is a process with a lease, and the state of its queues as the lease has it.
type Instance struct {
	Node, Name string
	Unreadable bool // its lease cannot be read, so it may handle any queue
	Draining   bool
	Static     string                     // which shards a static node owns, such as "0 of 3"; "" for other nodes
	Queues     map[string]int             // handled queues, with the number of owned shards
	Unready    map[string]string          // queues with a handler that cannot work, with the reason
	Waits      map[string][]protocol.Wait // what the lanes of a queue wait for
	Refused    []string                   // operations that Redis refuses
	Outgoing   map[string]string          // reasons why follow-ups wait, by the queue of their shards
}

// Handled holds the instances with a lease.
type Handled []Instance

// By returns the nodes that handle a queue, or may handle it.
func (h Handled) By(queueName string) (nodes []string) {
	for i := range h {
		name := h[i].Node
		if h[i].Unreadable {
			name += " (its lease cannot be read)"
		}
		if h[i].handles(queueName) && !slices.Contains(nodes, name) {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// of returns the instances that handle a queue, or may handle it.
func (h Handled) of(queueName string) (some []*Instance) {
	for i := range h {
		if h[i].handles(queueName) {
			some = append(some, &h[i])
		}
	}
	return some
}

func (i *Instance) handles(queueName string) bool {
	_, handles := i.Queues[queueName]
	return handles || i.Unreadable
}

// refused returns an operation on the queue that Redis refuses the instance, "" if there is none.
func (i *Instance) refused(queueName string) string {
	for _, text := range i.Refused {
		if strings.HasPrefix(text, "shard "+queueName+"/") || strings.Contains(text, fmt.Sprintf("queue %q", queueName)) {
			return text
		}
	}
	return ""
}

// CauseKind is a kind of [Cause].
type CauseKind string

// The kinds of causes in the order of their importance. The first stop a queue, the next slow it down, and the last concern some of
// its ids.
const (
	CauseRedis       CauseKind = "redis"       // Redis refuses leases
	CauseUnhandled   CauseKind = "unhandled"   // no live node handles it
	CausePaused      CauseKind = "paused"      // a person has paused it
	CauseReshard     CauseKind = "resharding"  // it is being resharded
	CauseDraining    CauseKind = "draining"    // all nodes that handle it give their shards away
	CauseRefused     CauseKind = "refused"     // Redis refuses an operation
	CauseUnready     CauseKind = "not_ready"   // a handler cannot work
	CauseUnowned     CauseKind = "unowned"     // shards have no live owner
	CauseRate        CauseKind = "rate"        // limit.rate
	CauseLimit       CauseKind = "limit"       // limit.concurrency
	CauseGroup       CauseKind = "group"       // groups
	CauseConcurrency CauseKind = "concurrency" // of the queue on a node
	CauseProcesses   CauseKind = "processes"   // of its handler
	CauseSlots       CauseKind = "slots"       // node.concurrency
	CauseStuck       CauseKind = "stuck"       // a shard waits for the end of a run
	CauseCrowded     CauseKind = "crowded"     // the ready ids are in few of its shards
	CauseShards      CauseKind = "shards"      // its shards work as fast as they can
	CausePutOff      CauseKind = "put_off"     // due jobs were put off
	CauseInFlight    CauseKind = "in_flight"   // payloads wait for the end of their id's run
	CauseHeld        CauseKind = "held"        // a person holds ids
	CauseRetries     CauseKind = "retries"     // ids wait for their next attempt
	CauseBlocked     CauseKind = "blocked"     // ids are out of retries
	CauseOutgoing    CauseKind = "outgoing"    // follow-ups wait to be delivered
	CauseFull        CauseKind = "full"        // Redis is full and refuses pushes
)

// Cause is a reason why a queue, or some ids of it, cannot go faster now.
type Cause struct {
	Kind    CauseKind `json:"kind" enum:"-"`     // as unhandled, paused, rate or held; there may be more
	Reason  string    `json:"reason"`            // one sentence for people
	Command string    `json:"command,omitempty"` // changes the cause, or shows more of it
}

// Slowest returns the most important cause of a queue's lag. Causes that concern only some ids do not count.
func Slowest(causes []Cause) (first Cause, there bool) {
	for _, c := range causes {
		if !slices.Contains([]CauseKind{CauseHeld, CauseRetries, CauseBlocked, CauseOutgoing, CauseFull}, c.Kind) {
			return c, true
		}
	}
	return Cause{}, false
}

// String returns the reason with the command.
func (c Cause) String() string {
	if c.Command == "" {
		return c.Reason
	}
	return c.Reason + "; see " + c.Command
}

// QueueFacts holds the figures behind the causes of a queue; see [QueueFacts.Causes].
type QueueFacts struct {
	Name    string
	Paused  bool
	Redis   string // why Redis refuses leases of the answering node; "" if it does not
	Full    string // which Redis is full; "" if none is
	Handled Handled
	Shards  []protocol.Stats // nil if they are not known
	Reshard *Reshard         // nil if none is under way
}

// patient is the minimum lag of a slow queue.
const patient = time.Second

// Causes returns why the queue cannot go faster now, the most important cause first.
func (f *QueueFacts) Causes() []Cause {
	causes, add := causeList()
	handlers, sum := f.Handled.of(f.Name), protocol.Sum(f.Shards)
	if f.Redis != "" {
		add(CauseRedis, "", "Redis refuses the leases of nodes, and without one a node handles nothing: %s", f.Redis)
	} else if len(handlers) == 0 {
		add(CauseUnhandled, "queues delete "+f.Name+" --dry-run", "no live node handles it: its jobs wait for a node with the queue in its configuration, or for a deletion")
	}
	if f.Paused {
		add(CausePaused, "queues resume "+f.Name, "it is paused: pushes are stored, and no job begins")
	}
	if f.Reshard.UnderWay() {
		add(CauseReshard, "queues reshard "+f.Name, "%s", f.Reshard)
	}
	f.addHandlers(handlers, add)
	if len(handlers) > 0 && !f.Reshard.UnderWay() {
		f.addUnowned(handlers, add)
	}
	f.addWaits(handlers, add)
	stopped := slices.ContainsFunc(*causes, func(c Cause) bool { return c.Kind != CauseGroup && c.Kind != CauseUnowned })
	if !stopped && sum.Lag >= patient && sum.Jobs.Ready > 0 {
		f.addShards(handlers, sum.Jobs.Ready, add)
	}
	if !stopped && sum.Lag >= patient && sum.Jobs.Ready == 0 && sum.Jobs.Scheduled > 0 {
		add(CausePutOff, "jobs "+f.Name+" --state scheduled", "its handler or a group put off jobs that were due, the oldest %s ago", sum.Lag.Round(time.Second))
	}
	if !stopped && sum.Lag >= patient && sum.Jobs.Ready+sum.Jobs.Scheduled == 0 && sum.Jobs.InFlight > 0 {
		add(CauseInFlight, "jobs "+f.Name+" --state in_flight", "payloads wait until the run of their id ends, and %s %s in flight",
			countIDs(sum.Jobs.InFlight), verb(sum.Jobs.InFlight, "is", "are"))
	}
	if n := sum.Jobs.Held; n > 0 {
		add(CauseHeld, "hold --queue "+f.Name, "a person holds %s", countIDs(n))
	}
	if n := sum.Jobs.Retry; n > 0 {
		add(CauseRetries, "errors "+f.Name, "%s failed and %s for the next attempt", countIDs(n), verb(n, "waits", "wait"))
	}
	if n := sum.Jobs.Blocked; n > 0 {
		add(CauseBlocked, "errors "+f.Name+" --state blocked", "%s ran out of retries and %s for a person", countIDs(n), verb(n, "waits", "wait"))
	}
	if n := sum.Outgoing; n > 0 && sum.OldestOut >= patientOut {
		reason := ""
		for _, i := range f.Handled {
			reason = cmp.Or(reason, i.Outgoing[f.Name])
		}
		if reason != "" {
			reason = ": " + reason
		}
		add(CauseOutgoing, "outgoing "+f.Name, "%d %s to other queues %s, the first for %s%s", n, verb(n, "follow-up", "follow-ups"), verb(n, "waits", "wait"),
			sum.OldestOut.Round(time.Second), reason)
	}
	if f.Full != "" {
		add(CauseFull, "redis", "%s", f.Full)
	}
	return *causes
}

// patientOut is the minimum time for which a follow-up waits before it is a cause.
const patientOut = 5 * time.Second

// Waits returns only the causes that make lanes wait.
func (f *QueueFacts) Waits() []Cause {
	causes, add := causeList()
	f.addWaits(f.Handled.of(f.Name), add)
	return *causes
}

type addCause func(kind CauseKind, command, reason string, args ...any)

// causeList returns an empty list and a function that adds a cause to it.
func causeList() (*[]Cause, addCause) {
	causes := []Cause{}
	return &causes, func(kind CauseKind, command, reason string, args ...any) {
		if command != "" {
			command = "lowkiq-node " + command
		}
		causes = append(causes, Cause{kind, fmt.Sprintf(reason, args...), command})
	}
}

// addHandlers adds the causes that the leases of the queue's handlers show.
func (f *QueueFacts) addHandlers(handlers []*Instance, add addCause) {
	var draining, unready []string
	why, refused := "", ""
	for _, h := range handlers {
		if h.Draining {
			draining = append(draining, h.Node)
		}
		if text, there := h.Unready[f.Name]; there {
			unready, why = append(unready, h.Node), cmp.Or(why, text)
		}
		if text := h.refused(f.Name); text != "" && refused == "" {
			refused = text
			add(CauseRefused, "", "Redis refuses node %s an operation: %s", h.Node, text)
		}
	}
	if len(draining) > 0 && len(draining) == len(handlers) {
		add(CauseDraining, "drain --undo "+draining[0], "all nodes that handle it are draining: %s", strings.Join(draining, ", "))
	}
	switch n := len(unready); {
	case n == 0:
	case n == len(handlers):
		add(CauseUnready, "", "no handler of it is ready (%s): %s", strings.Join(unready, ", "), why)
	default:
		add(CauseUnready, "", "%d of %d handlers are not ready (%s), and others take their shards: %s", n, len(handlers), strings.Join(unready, ", "), why)
	}
}

// addUnowned adds shards with waiting ids and no live owner.
func (f *QueueFacts) addUnowned(handlers []*Instance, add addCause) {
	shards, waiting := 0, 0
	for i := range f.Shards {
		s := &f.Shards[i]
		if left := s.Jobs.Ready + s.Jobs.InFlight; !isOwned(s, handlers) && left > 0 {
			shards++
			waiting += left
		}
	}
	if shards == 0 {
		return
	}
	static := sharesOf(handlers)
	if static != "" {
		static = "; " + takeNoOthers(static)
	}
	add(CauseUnowned, "shards --queue "+f.Name, "%d of %d shards have no live owner, and %s %s in them until a node claims them%s",
		shards, len(f.Shards), countIDs(waiting), verb(waiting, "waits", "wait"), static)
}

// isOwned reports whether a live handler owns the shard.
func isOwned(s *protocol.Stats, handlers []*Instance) bool {
	return slices.ContainsFunc(handlers, func(h *Instance) bool { return h.Name == s.Owner.Instance })
}

// addWaits adds the causes that make lanes with a batch wait.
func (f *QueueFacts) addWaits(handlers []*Instance, add addCause) {
	nodes, bound := map[protocol.Stage][]string{}, map[protocol.Stage]string{}
	for _, h := range handlers {
		for _, wait := range h.Waits[f.Name] {
			if !slices.Contains(nodes[wait.For], h.Node) { // after a change of rules it may report two bounds for a moment
				nodes[wait.For] = append(nodes[wait.For], h.Node)
			}
			bound[wait.For] = cmp.Or(bound[wait.For], wait.Of)
		}
	}
	on := func(stage protocol.Stage) string { return strings.Join(nodes[stage], ", ") }
	set := "rules " + f.Name + " --set "
	if of := bound[protocol.ForRate]; of != "" {
		add(CauseRate, set+"limit.rate=RATE", "the cluster hands out as many ids as its limit allows, %s", of)
	}
	if of := bound[protocol.ForPermit]; of != "" {
		add(CauseLimit, set+"limit.concurrency=N", "the cluster runs as many calls as its limit allows, %s", of)
	}
	if of := bound[protocol.ForGroup]; of != "" {
		add(CauseGroup, set+"groups.concurrency=N", "ids wait for the limit of their group, %s", of)
	}
	if of := bound[protocol.ForCall]; of != "" {
		add(CauseConcurrency, set+"concurrency=N", "node %s runs as many calls as its concurrency allows, %s", on(protocol.ForCall), of)
	}
	if of := bound[protocol.ForProcess]; of != "" {
		add(CauseProcesses, "", "all processes of its handler are busy on node %s, %s: handler.processes in the configuration is their number", on(protocol.ForProcess), of)
	}
	if of := bound[protocol.ForSlot]; of != "" {
		add(CauseSlots, "", "all calls of node %s are taken, %s of all queues: node.concurrency in the configuration is their number", on(protocol.ForSlot), of)
	}
}

// crowdShare defines a crowded queue. At least nine of ten ready ids are in 1/crowdShare of its shards or fewer.
const crowdShare = 4

// patientRun is the minimum age of a run for which a shard is stuck.
const patientRun = time.Minute

// addShards adds as a cause that ids crowd into few shards, or else that the lanes of all shards are busy.
func (f *QueueFacts) addShards(handlers []*Instance, ready int, add addCause) {
	order := make([]int, len(f.Shards))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(f.Shards[y].Jobs.Ready, f.Shards[x].Jobs.Ready) })
	few, in, busy := max(1, len(order)/crowdShare), 0, 0
	for _, i := range order {
		if f.Shards[i].Jobs.Ready > 0 {
			busy++
		}
	}
	crowd := 0 // shards that have nine of ten ready ids
	for crowd < len(order) && 10*in < 9*ready {
		in += f.Shards[order[crowd]].Jobs.Ready
		crowd++
	}
	command := "rules " + f.Name + " --set shard_concurrency=N"
	// The shard has popped nothing for long. A dead owner has no run to cancel.
	if s := &f.Shards[order[0]]; crowd == 1 && s.First != "" && s.FirstSince >= patientRun && s.LastSince >= s.Lag/2 && isOwned(s, handlers) {
		add(CauseStuck, "cancel "+shell.Word(s.First)+" --queue "+f.Name, "%d of %s %s in shard %d, which waits for %s; node %s has had that id for %s",
			in, readyIDs(ready), verb(in, "is", "are"), order[0], s.First, identity.NodeOf(s.Owner.Instance), s.FirstSince.Round(time.Second))
		return
	}
	switch {
	case len(order) > 1 && crowd == 1:
		add(CauseCrowded, command, "%d of %s %s in shard %d of %d, and a shard has no more than shard_concurrency batches with handlers",
			in, readyIDs(ready), verb(in, "is", "are"), order[0], len(order))
	case len(order) > 1 && crowd <= few:
		add(CauseCrowded, command, "%d of %s %s in %d of %d shards, and a shard has no more than shard_concurrency batches with handlers",
			in, readyIDs(ready), verb(in, "is", "are"), crowd, len(order))
	default:
		add(CauseShards, command, "%s %s in %d of %d shards, and a shard has no more than shard_concurrency batches with handlers",
			readyIDs(ready), verb(ready, "is", "are"), busy, len(order))
	}
}

func readyIDs(n int) string {
	if n == 1 {
		return "1 ready id"
	}
	return fmt.Sprintf("%d ready ids", n)
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
