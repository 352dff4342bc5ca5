package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// world is a Redis in memory with sources, targets and faults. It follows the rules of lua/outgoing.lua, lua/deliver.lua and
// lua/outgoing_trim.lua.
type world struct {
	t       *rapid.T
	queues  map[string]*protocol.Queue
	out     map[lowkiq.Shard][]protocol.Outgoing // by source
	from    map[string]int64                     // by target and source
	arrived map[string][]string                  // "source payload" by queue and id, in order
	full    map[lowkiq.Shard]bool                // targets that refuse
	gone    map[string]bool                      // queues that cannot be opened
	faults  int                                  // answers that may still be lost
	forgets bool                                 // a mutation: targets do not keep numbers
}

var errLost = errors.New("the answer was lost")

// lose reports whether an answer is lost.
func (w *world) lose(what string) bool {
	if w.faults == 0 || !rapid.Bool().Draw(w.t, what) {
		return false
	}
	w.faults--
	return true
}

func (w *world) Queue(_ context.Context, name string) (*protocol.Queue, error) {
	if w.gone[name] {
		return nil, lowkiq.ErrUnknownQueue
	}
	return w.queues[name], nil
}

func (w *world) ReadOutgoing(_ context.Context, n, _ int, pages ...*protocol.OutgoingPage) {
	n = min(n, 5)
	for _, p := range pages {
		if w.lose("read") {
			p.Err = errLost
			continue
		}
		all := w.out[p.Shard.Shard]
		p.Waiting = len(all)
		for _, o := range all {
			if o.Number > p.After && len(p.All) < n {
				p.All = append(p.All, o)
			}
		}
	}
}

func (w *world) DeliverOutgoing(_ context.Context, shipments []*protocol.Shipment) {
	for _, s := range shipments {
		key := fmt.Sprint(s.To.Shard, s.Queue.Shards, "<", s.From.Shard)
		lost := w.lose("deliver")
		for _, o := range s.All {
			if !w.forgets && o.Number <= w.from[key] {
				s.Delivered++
				continue
			}
			if w.full[s.To.Shard] {
				s.Err = protocol.ErrTooManyPayloads
				break
			}
			w.from[key] = o.Number
			at := s.Queue.Name + "/" + o.ID
			w.arrived[at] = append(w.arrived[at], fmt.Sprint(s.From.Shard, " ", string(o.Payload)))
			s.Delivered++
		}
		if lost {
			s.Delivered, s.Err = 0, errLost
		}
	}
}

func (w *world) TrimPages(_ context.Context, pages ...*protocol.OutgoingPage) error {
	lost := w.lose("trim")
	for _, p := range pages {
		if len(p.Delivered) > 0 && !(lost && rapid.Bool().Draw(w.t, "trim never came")) {
			w.out[p.Shard.Shard] = slices.DeleteFunc(w.out[p.Shard.Shard], func(o protocol.Outgoing) bool { return slices.Contains(p.Delivered, o.Number) })
		}
	}
	if lost {
		return errLost
	}
	return nil
}

func (w *world) EncodeFollowUps(context.Context, string, int, []lowkiq.FollowUp) ([]protocol.FollowUp, error) {
	return nil, errors.New("no follow-up of this test needs it")
}

// relays are relays of several nodes on the same shards.
type relays struct {
	*world
	now time.Duration
	all []*Relay
}

func (r *relays) add() *Relay {
	relay := New(Config{Redis: r.world, Now: func() time.Duration { return r.now }, Log: slog.New(slog.DiscardHandler), Failed: func(lowkiq.Shard, error) {}, Dropped: func(lowkiq.Shard, *protocol.Outgoing, error) {}})
	r.all = append(r.all, relay)
	return relay
}

// turn lets a relay work once on what is due.
func turn(r *Relay) bool {
	due, _ := r.takeDue()
	if len(due) > 0 {
		r.work(context.Background(), due)
	}
	return len(due) > 0
}

// checkRelays runs relays in a world with faults. Each follow-up must arrive once, and those of a source for an id in order.
// It returns what is wrong, "" if nothing is.
func checkRelays(t *rapid.T, client *protocol.Client, forgets bool) string {
	queue := func(name string, shards, layout int) *protocol.Queue {
		return client.Registry().Unlisted(name, protocol.RegistryEntry{Shards: shards, Layout: layout})
	}
	w := &world{
		t: t, queues: map[string]*protocol.Queue{"mail": queue("mail", 3, 1), "bills": queue("bills", 1, 1)}, forgets: forgets,
		out: map[lowkiq.Shard][]protocol.Outgoing{}, from: map[string]int64{}, arrived: map[string][]string{},
		full: map[lowkiq.Shard]bool{}, gone: map[string]bool{}, faults: rapid.IntRange(0, 6).Draw(t, "faults"),
	}
	rs := &relays{world: w}
	rs.add()
	sources, number, want := queue("orders", 2, 1).All(), int64(0), map[string][]string{}
	ids := []string{"a", "b", "c", "d"}
	target := func() lowkiq.Shard {
		q := w.queues[rapid.SampledFrom([]string{"mail", "bills"}).Draw(t, "queue")]
		return q.Shard(rapid.IntRange(0, q.Shards-1).Draw(t, "target")).Shard
	}
	for range rapid.IntRange(5, 60).Draw(t, "steps") {
		switch step := rapid.IntRange(0, 9).Draw(t, "step"); step {
		case 0, 1, 2, 3: // ends of payloads
			s := rapid.SampledFrom(sources).Draw(t, "source")
			for range rapid.IntRange(1, 8).Draw(t, "follow-ups") {
				number++
				o := protocol.Outgoing{Number: number, FollowUp: protocol.FollowUp{
					Queue: rapid.SampledFrom([]string{"mail", "bills"}).Draw(t, "to"), ID: rapid.SampledFrom(ids).Draw(t, "id"), Payload: fmt.Append(nil, number)}}
				w.out[s.Shard] = append(w.out[s.Shard], o)
				key := fmt.Sprint(o.Queue, "/", o.ID, " ", s.Shard)
				want[key] = append(want[key], fmt.Sprint(s.Shard, " ", number))
			}
			rapid.SampledFrom(rs.all).Draw(t, "relay").Kick(s, false)
		case 4, 5:
			turn(rapid.SampledFrom(rs.all).Draw(t, "relay"))
		case 6: // a relay dies, and another node claims the shards
			i := rapid.IntRange(0, len(rs.all)-1).Draw(t, "dies")
			if rapid.Bool().Draw(t, "stays") && len(rs.all) < 3 {
				i = -1 // it is late and works on
			}
			if i >= 0 {
				rs.all = slices.Delete(rs.all, i, i+1)
			}
			next := rs.add()
			for _, s := range sources {
				next.Kick(s, true)
			}
		case 7:
			s := target()
			w.full[s] = !w.full[s]
		case 8:
			w.gone["bills"] = !w.gone["bills"]
		case 9:
			rs.now += time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond
		}
	}
	clear(w.full)
	clear(w.gone)
	w.faults = 0
	last := rs.add()
	for _, s := range sources {
		last.Kick(s, true)
	}
	for range 10_000 {
		worked := false
		for _, r := range rs.all {
			worked = turn(r) || worked
		}
		if !worked {
			rs.now += 10 * time.Second
		}
		if len(w.out[sources[0].Shard])+len(w.out[sources[1].Shard]) == 0 {
			break
		}
	}
	got := map[string][]string{}
	for at, all := range w.arrived {
		for _, one := range all {
			var source string
			fmt.Sscan(one, &source)
			got[at+" "+source] = append(got[at+" "+source], one)
		}
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		return fmt.Sprintf("got %v\nwant %v\nleft %v", got, want, w.out)
	}
	return ""
}

func newClient(t *testing.T) *protocol.Client {
	client, err := protocol.Open(protocol.Config{Redis: "redis://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// unread is a world whose shards cannot be read while err is not nil.
type unread struct {
	*world
	err error
}

func (u *unread) ReadOutgoing(ctx context.Context, n, size int, pages ...*protocol.OutgoingPage) {
	u.world.ReadOutgoing(ctx, n, size, pages...)
	for _, p := range pages {
		if p.Err = u.err; u.err != nil {
			p.All = nil
		}
	}
}

// TestReasonOfUnreadShard checks that people see why the follow-ups of a shard cannot be read, until they can.
func TestReasonOfUnreadShard(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	s := client.Registry().Unlisted("orders", protocol.RegistryEntry{Shards: 1, Layout: 1}).Shard(0)
	mail := client.Registry().Unlisted("mail", protocol.RegistryEntry{Shards: 1, Layout: 1})
	w := &unread{err: errLost, world: &world{
		queues: map[string]*protocol.Queue{"mail": mail}, from: map[string]int64{}, arrived: map[string][]string{},
		out: map[lowkiq.Shard][]protocol.Outgoing{s.Shard: {{Number: 1, FollowUp: protocol.FollowUp{Queue: "mail", ID: "a"}}}},
	}}
	now := time.Duration(0)
	r := New(Config{Redis: w, Now: func() time.Duration { return now }, Log: slog.New(slog.DiscardHandler), Failed: func(lowkiq.Shard, error) {}})
	r.Kick(s, false)
	turn(r)
	if got := r.Reasons()["orders"]; got != errLost.Error() {
		t.Errorf("got reason %q, want %q", got, errLost)
	}
	w.err = nil
	for now = time.Minute; len(w.arrived) == 0; now += time.Minute {
		if !turn(r) {
			t.Fatal("the shard is not read again")
		}
	}
	if got := r.Reasons(); got != nil {
		t.Errorf("got reasons %v, want none", got)
	}
}

// TestEachArrivesOnce checks that follow-ups arrive once and in order while relays die, come late and lose answers, and
// targets refuse or are gone.
func TestEachArrivesOnce(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	rapid.Check(t, func(t *rapid.T) {
		if wrong := checkRelays(t, client, false); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// TestWithoutNumbersSomeArriveTwice checks that the test above objects if targets keep no numbers.
func TestWithoutNumbersSomeArriveTwice(t *testing.T) {
	t.Parallel()
	client := newClient(t)
	for seed := range 200 {
		if rapid.Custom(func(t *rapid.T) string { return checkRelays(t, client, true) }).Example(seed) != "" {
			return
		}
	}
	t.Error("no run was objected to")
}
