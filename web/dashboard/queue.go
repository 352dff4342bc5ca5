package dashboard

import (
	"net/http"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// shardsPerPage is the number of shards in a table.
const shardsPerPage = 100

// queueBody is the page of a queue.
type queueBody struct {
	*figures
	Read    bool
	Tabs    tabs
	Owners  []ownerCount
	Rows    []shardRow
	Pager   pager
	Actions []*actions.Action
	Now     time.Time
	Ticker  ticker
	Days    *daysBody // nil if there is nothing to draw, or it cannot be read
	// Outgoing is nil if no follow-ups wait, or if they cannot be read.
	Outgoing *outgoingBody
	Flood    *floodBody // nil if the queue does not lag, its ids are in no groups, or they cannot be read
}

// tabs are the pages of a queue. On names the page that is shown.
type tabs struct {
	Queue, On string
	Search    string // text of the search box; it is kept on the other lists
}

// shardRow is a shard.
type shardRow struct {
	Index int
	shardFigures
	Node  string // of the owner
	Cause string // the sentence beside the lag, "" if there is none
}

// ownerCount is the number of shards of a queue that a node owns.
type ownerCount struct {
	Node   string
	Shards int
}

// queuePage shows a queue. Unlike the other live pages it may read the figures itself, and then shares them with all
// pages. The days and the groups are extras, and the page is shown without them if they cannot be read.
func (d *Dashboard) queuePage(r *http.Request) (view, error) {
	name := r.PathValue("q")
	s := d.sampler.await(r.Context(), name, isRecent)
	known := s.queue(name)
	if known == nil || known.Entry.Shards <= chunkShards {
		// After an action the page must not show older figures. Reading so few shards is cheap.
		fresh, err := d.source.figures(r.Context(), name)
		if err != nil {
			return view{}, unknownQueue(name, err)
		}
		s = d.sampler.learnFigures(fresh)
	}
	v, err := d.queueView(s, accessOf(r))
	if b, is := v.Body.(queueBody); err == nil && is {
		if of, err := d.daysOf(r.Context(), name, daySpans()[0]); err == nil && (of.Top > 0 || of.Some) {
			b.Days = &of
		}
		if b.Sum.Outgoing > 0 {
			if b.Outgoing, _ = d.readOutgoing(r.Context(), name); b.Outgoing != nil {
				b.Outgoing.Drops = auth.MayChange(r)
			}
		}
		if b.Sum.Lag >= floodLag {
			b.Flood, _ = d.readFlood(r.Context(), name)
			if b.Flood != nil {
				b.Flood.Holds = auth.MayChange(r)
			}
		}
		v.Body = b
	}
	return v, err
}

func unknownQueue(name string, err error) error {
	if err == lowkiq.ErrUnknownQueue {
		return web.NewProblem(http.StatusNotFound, "There is no queue %q. It was never registered in this cluster, or was deleted.", name)
	}
	return err
}

// queueView makes the page of a queue from a snapshot. queuePage and the stream of the page both use it.
func (d *Dashboard) queueView(s *snapshot, v access) (view, error) {
	name := strings.TrimPrefix(v.Path, "/queues/")
	f := s.queue(name)
	if f == nil {
		return view{}, web.NewProblem(http.StatusNotFound, "There is no queue %q.", name)
	}
	b := queueBody{figures: f, Read: !f.At.IsZero(), Tabs: tabs{Queue: name}, Owners: ownersOf(f.Shards), Now: f.Sum.Now}
	b.Pager = pagerOf(v.URL, v.Query().Get("page"), len(f.Shards), shardsPerPage)
	for i := b.Pager.From; i < b.Pager.To; i++ {
		b.Rows = append(b.Rows, shardRow{i, f.Shards[i], nodeOf(f.Shards[i].Owner.Instance), f.causeOf(f.Shards[i])})
	}
	if v.mayChange {
		first := "pause"
		if f.Entry.Paused {
			first = "resume"
		}
		b.Actions = buttonsOf(first, "run-all", "kill-failed", "delete-failed")
	}
	return view{Page: "queue", Title: name, Nav: "/", Queue: name, Live: liveURL(v.URL), Body: b}, nil
}

// nodeOf returns the node of an instance's name, <node>/<boot>.<n>.
func nodeOf(instance string) string {
	if slash := strings.LastIndexByte(instance, '/'); slash > 0 {
		return instance[:slash]
	}
	return instance
}

// ownersOf counts shards by owner, in the order of the owners' names. "" stands for no owner.
func ownersOf(shards []shardFigures) []ownerCount {
	counts := map[string]int{}
	for _, s := range shards {
		counts[s.holder()]++
	}
	var all []ownerCount
	for _, node := range sortedKeys(counts) {
		all = append(all, ownerCount{node, counts[node]})
	}
	return all
}

// holder returns the live node that has the shard, "" if none has.
func (s shardFigures) holder() string {
	if s.State == status.Owned || s.State == status.Leaving {
		return nodeOf(s.Owner.Instance)
	}
	return ""
}
