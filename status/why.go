package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Facts has the state of an id and of its shard. Why decides from it without I/O why no handler has the id.
type Facts struct {
	Job        browse.Listed
	Found      bool
	Position   browse.Position
	Paused     bool
	Shard      Shard
	Where      protocol.Whereabouts // of an id in flight, as its owner says
	Handled    bool                 // a live node that is not draining handles the queue
	Static     string               // the static nodes that handle the queue, with their shares
	Refused    string               // what Redis refuses the shard's owner, "" if nothing
	Held       string               // who holds the id, until when and why; "" if nobody does any more
	Permits    map[string]int       // by instance, of an id that waits for a permit
	Group      string               // of the id, "" if it is in none or its group is not known here
	InGroup    protocol.Group
	GroupLimit rules.Limit // of a group
	Unready    string      // why the owner's handler of the queue cannot work, "" if it can
	Limits     []Cause     // what lanes of the shard's owner wait for
	Reshard    *Reshard    // of the queue; nil if none is under way
	Workflows  bool        // whether the cluster has workflows
}

// WhyAbsent says why there is no job of an id. workflows says whether the cluster has workflows.
func WhyAbsent(workflows bool) string {
	if workflows {
		return "it is done, was deleted, was never pushed, or waits in a workflow for other jobs"
	}
	return "it is done, was deleted, or was never pushed"
}

// Why returns the first reason why no handler has an id.
func (f *Facts) Why(id string) Why {
	if !f.Found && f.Reshard.Moves() {
		return Why{ID: id, Queue: f.Shard.Queue, Shard: f.Shard.Index, State: Absent, Reason: fmt.Sprintf("queue %q has no job %q, or not yet; jobs are moving to its shard, and %d %% have moved", f.Shard.Queue, id, f.Reshard.Percent())}
	}
	if !f.Found {
		return Why{ID: id, Queue: f.Shard.Queue, Shard: f.Shard.Index, State: Absent, Reason: fmt.Sprintf("queue %q has no job %q: %s", f.Shard.Queue, id, WhyAbsent(f.Workflows))}
	}
	r := Why{ID: id, Queue: f.Shard.Queue, Shard: f.Shard.Index, State: string(f.Job.State)}
	if f.Job.State != browse.StateMorgue && f.Job.State != browse.StateBlocked && f.Job.State != browse.StateHeld {
		due := f.Job.PerformAt.Sub(f.Position.Now).Seconds()
		r.Due = &due
	}
	if !f.Job.Since.IsZero() {
		since := f.Position.Now.Sub(f.Job.Since).Seconds()
		r.Since = &since
	}
	switch f.Job.State {
	case browse.StateMorgue:
		r.Reason = "it is in the morgue" + f.lastError() + ": requeue it, or delete it"
	case browse.StateBlocked:
		r.Reason = "it ran out of retries and waits for a person" + f.lastError() + ": blocked requeue, skip or bury"
	case browse.StateInFlight:
		r.Reason = f.inFlight()
	case browse.StateHeld:
		r.Reason = "it is held" + f.Held + ": hold --undo lets it go on"
		if f.Held == "" {
			r.Reason = "it was held, and waits for the owner of its shard to release it"
		}
	default:
		if r.Reason = f.waiting(); f.Held != "" {
			r.Reason += "; no handler gets it then, as it is held" + f.Held
		}
	}
	if f.Position.Urgent {
		r.Reason += "; it is urgent"
	}
	return r
}

func (f *Facts) lastError() string {
	if f.Job.Error == "" {
		return ""
	}
	return fmt.Sprintf(" (last error: %s)", protocol.Summary(f.Job.Error))
}

func (f *Facts) inFlight() string {
	switch {
	case f.Shard.Owner == "":
		return "it was in flight, and its shard has no owner now: it runs again once the shard is claimed"
	case !f.Alive():
		return fmt.Sprintf("it was in flight with %s, whose lease is gone: it runs again once the shard is seized%s", f.Shard.Owner, f.successor())
	}
	if f.Refused != "" {
		return fmt.Sprintf("it is in flight (%d) with %s, which Redis refuses an operation: %s", f.Job.Flight, f.Shard.Owner, f.Refused)
	}
	return f.handling()
}

// Alive reports whether the shard's owner has a lease.
func (f *Facts) Alive() bool { return f.Shard.State == Owned || f.Shard.State == Leaving }

func (f *Facts) waiting() string {
	wait := f.Job.PerformAt.Sub(f.Position.Now)
	putOff := !f.Job.WaitingSince.IsZero() && f.Job.WaitingSince.Before(f.Job.PerformAt)
	switch {
	case wait > 0 && f.Job.State == browse.StateRetry && !putOff:
		return fmt.Sprintf("attempt %d failed%s; the next one is due in %s%s%s", f.Job.RetryCount+1, f.lastError(), f.formatWait(f.Job.PerformAt), f.group(), f.notReady())
	case wait > 0 && putOff:
		return fmt.Sprintf("it has waited for %s, was put off, and is due again in %s%s%s", formatDuration(f.Position.Now.Sub(f.Job.WaitingSince)), f.formatWait(f.Job.PerformAt), f.group(), f.notReady())
	case wait > 0:
		return "it is due in " + f.formatWait(f.Job.PerformAt) + f.group() + f.notReady()
	case f.Paused:
		return fmt.Sprintf("queue %q is paused", f.Shard.Queue)
	case f.Reshard.Moves() && f.Shard.Owner == "":
		return fmt.Sprintf("its shard is being copied: %d %%", f.Reshard.Percent())
	case f.Reshard.UnderWay() && !f.Reshard.Moves():
		return fmt.Sprintf("queue %q pauses: %s", f.Shard.Queue, f.Reshard)
	case !f.Alive():
		return f.ownerless()
	case f.Refused != "":
		return fmt.Sprintf("its shard waits, because Redis refuses %s an operation: %s", f.Shard.Owner, f.Refused)
	case f.Shard.State == Leaving:
		return fmt.Sprintf("its shard is on its way from %s to %s", f.Shard.Owner, cmp.Or(f.Shard.Assigned, "another node"))
	case f.Unready != "":
		return fmt.Sprintf("its shard waits, because the handler of %s is not ready: %s", f.Shard.Owner, f.Unready)
	case f.Position.Quarantined:
		return fmt.Sprintf("it is in quarantine (%d crashes): it was in flight when a worker died, and runs alone, once the %d ids in flight are done",
			f.Position.Crashes, f.Position.InFlight)
	case f.Position.Ahead > 0:
		return fmt.Sprintf("it waits behind %s in its shard, which %s works on (%d in flight)%s", countIDs(f.Position.Ahead), f.Shard.Owner, f.Position.InFlight, f.limit())
	}
	return fmt.Sprintf("it is next in its shard, which %s works on (%s)%s", f.Shard.Owner, f.flights(), f.limit())
}

// flights names the ids of the shard in flight.
func (f *Facts) flights() string {
	text := fmt.Sprintf("%d in flight", f.Position.InFlight)
	if named := f.Position.Flight; len(named) > 0 {
		text += ": " + strings.Join(named, ", ")
		if len(named) < f.Position.InFlight {
			text += ", …"
		}
	}
	return text
}

// limit adds the cause that slows down the whole queue there.
func (f *Facts) limit() string {
	if len(f.Limits) == 0 {
		return ""
	}
	return fmt.Sprintf("; of queue %s: %s", f.Shard.Queue, f.Limits[0].Reason)
}

// notReady adds that the owner's handler cannot work. An id that it has put back then waits for more than its due time.
func (f *Facts) notReady() string {
	if f.Unready == "" || !f.Alive() {
		return ""
	}
	return fmt.Sprintf("; the handler of %s is not ready: %s", f.Shard.Owner, f.Unready)
}

// countIDs returns a number of ids for people.
func countIDs[N int | int64](n N) string {
	if n == 1 {
		return "1 id"
	}
	return fmt.Sprintf("%d ids", n)
}

// formatDuration returns a duration for people, without parts of a second from 10 s on.
func formatDuration(d time.Duration) string {
	if d >= 10*time.Second {
		return d.Round(time.Second).String()
	}
	return d.Round(time.Millisecond).String()
}

// formatWait returns the wait until a time, for people. From two days on, it returns days and the time.
func (f *Facts) formatWait(until time.Time) string {
	const day = 24 * time.Hour
	wait := until.Sub(f.Position.Now)
	if wait < 2*day {
		return formatDuration(wait)
	}
	return fmt.Sprintf("%d days, at %s", wait/day, until.UTC().Format(time.RFC3339))
}

func (f *Facts) ownerless() string {
	switch {
	case !f.Handled:
		return fmt.Sprintf("no live node handles queue %q", f.Shard.Queue)
	case f.Shard.Owner == "":
		return "nobody owns its shard now" + f.successor()
	}
	return fmt.Sprintf("its shard is held by %s, whose lease is gone%s", f.Shard.Owner, f.successor())
}

// successor adds which node should take the shard.
func (f *Facts) successor() string {
	if f.Shard.State == Unowned && f.Static != "" {
		return "; " + takeNoOthers(f.Static)
	}
	if f.Shard.Assigned == "" || f.Shard.State != Claiming {
		return ""
	}
	return fmt.Sprintf("; %s is to claim it", f.Shard.Assigned)
}

// handling says where a live owner has an id in flight.
func (f *Facts) handling() string {
	age := ""
	if !f.Job.Since.IsZero() {
		age = fmt.Sprintf(" %s ago", formatDuration(f.Position.Now.Sub(f.Job.Since)))
	}
	owner, popped := f.Shard.Owner, fmt.Sprintf("popped%s (flight %d)", age, f.Job.Flight)
	switch f.Where.Stage {
	case protocol.Handled:
		return fmt.Sprintf("a handler of %s has it (flight %d) for %s; it was popped%s", owner, f.Job.Flight, formatDuration(f.Where.For), cmp.Or(age, " before"))
	case protocol.ForProcess:
		return fmt.Sprintf("%s, it waits for a process of %s: all that handle the queue there are busy", popped, owner)
	case protocol.ForCall:
		return fmt.Sprintf("%s, it waits for a handler of %s: the queue is at its concurrency there", popped, owner)
	case protocol.ForPermit:
		return fmt.Sprintf("%s, it waits for a handler of %s: the cluster is at the limit of the queue%s", popped, owner, f.permits())
	case protocol.ForRate:
		return fmt.Sprintf("%s, it waits for a handler of %s: as many ids as the limit of the queue allows were handed out of late", popped, owner)
	case protocol.ForGroup:
		return fmt.Sprintf("%s, it waits on %s for another id of its group to end%s", popped, owner, f.group())
	case protocol.ForSlot:
		return fmt.Sprintf("%s, it waits for a handler of %s: the node is at its concurrency", popped, owner)
	case protocol.Behind:
		return fmt.Sprintf("%s by %s, it waits for others of its shard that were popped before it", popped, owner)
	}
	return fmt.Sprintf("%s has it, %s, and does not say whether a handler has begun", owner, popped)
}

// group adds why the id waits for its group.
func (f *Facts) group() string {
	held, words := holders(f.InGroup.Holders)
	limit := f.GroupLimit
	switch {
	case f.InGroup.Till.After(f.Position.Now):
		return fmt.Sprintf("; a handler holds its group %s back for %s: hold --undo --prefix %[1]s lets it go on", f.Group, f.formatWait(f.InGroup.Till))
	case limit.Concurrency > 0 && held >= limit.Concurrency:
		return fmt.Sprintf("; its group %s is at its limit (%d of %d: %s)", f.Group, held, limit.Concurrency, words)
	case limit != (rules.Limit{}) && !f.Job.PerformAt.After(f.InGroup.Again.Add(time.Second)): // the limit seems to have put it back until Again
		var may []string
		if limit.Concurrency > 0 {
			may = append(may, fmt.Sprintf("%d of %d in calls", held, limit.Concurrency))
			if held > 0 {
				may[0] += ": " + words
			}
		}
		if limit.Rate.N > 0 {
			may = append(may, limit.Rate.String())
		}
		return fmt.Sprintf("; ids of its group %s wait for the limit of the group (%s)", f.Group, strings.Join(may, "; "))
	}
	return ""
}

// permits adds how many calls of the queue each instance may have.
func (f *Facts) permits() string {
	sum, words := holders(f.Permits)
	if sum == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d permits: %s)", sum, words)
}

// holders returns the sum, and the number of each instance for people.
func holders(by map[string]int) (sum int, text string) {
	words := make([]string, 0, len(by))
	for _, instance := range slices.Sorted(maps.Keys(by)) {
		sum += by[instance]
		words = append(words, fmt.Sprintf("%s %d", instance, by[instance]))
	}
	return sum, strings.Join(words, ", ")
}
