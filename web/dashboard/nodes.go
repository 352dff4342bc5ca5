package dashboard

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
)

// nodesBody is the page of the nodes.
type nodesBody struct {
	Status    status.Status
	Voters    int
	Nodes     []nodeRow
	Static    bool // there is no leader, and a node is static
	Gossip    bool // the answering node gossips
	Now       time.Time
	MayChange bool // the page offers to drain
}

// nodeRow is an instance, by its lease and by gossip.
type nodeRow struct {
	status.Node
	Leased bool
	Leader bool
	Behind bool            // it has applied an older assignment than the answering node
	Member *status.Member  // nil if gossip does not know it
	Action *actions.Action // drain, or its undoing; nil if it is not offered
}

// Start returns when the instance began, the zero time if it is unknown.
func (n nodeRow) Start() time.Time {
	if n.Since == 0 {
		return time.Time{}
	}
	return fromUnix(n.Since)
}

// Link returns the address of the node's own pages, "" if the node names none. The address comes from the lease,
// which any client of Redis may write, so a page links only to http and https.
func (n nodeRow) Link() string {
	if strings.HasPrefix(n.HTTP, "http://") || strings.HasPrefix(n.HTTP, "https://") {
		return n.HTTP
	}
	return ""
}

// nodesView makes the page of the nodes. It shows leases and gossip side by side, because a difference between them
// points to a network that is cut.
func (d *Dashboard) nodesView(s *snapshot, v access) (view, error) {
	b := nodesBody{Status: s.Status, Nodes: nodeRows(s, v.mayChange), Gossip: len(s.Members) > 0, Now: s.At, MayChange: v.mayChange}
	for _, n := range b.Nodes {
		if n.Voter {
			b.Voters++
		}
		b.Static = b.Static || n.Static != "" && s.Status.Leader == ""
	}
	return view{Page: "nodes", Title: "Nodes", Nav: "/nodes", Live: liveURL(v.URL), Body: b}, nil
}

// nodeRows joins leases and gossip. It includes instances that only leases or only gossip know.
func nodeRows(s *snapshot, mayChange bool) []nodeRow {
	var rows []nodeRow
	known := map[string]bool{}
	for _, n := range s.Status.Nodes {
		row := nodeRow{Node: n, Leased: n.State != status.Gone, Leader: n.Name == s.Status.Leader && n.State != status.Gone}
		row.Behind = row.Leased && n.Static == "" && n.Applied < s.Status.Generation.Index
		for i, m := range s.Members {
			if m.Instance == n.Instance {
				row.Member = &s.Members[i]
			}
		}
		if row.Leased && mayChange {
			name := "drain"
			if n.State == status.Draining {
				name = "undrain"
			}
			row.Action = actions.Named(name)
		}
		known[n.Instance] = true
		rows = append(rows, row)
	}
	for i, m := range s.Members {
		if !known[m.Instance] {
			rows = append(rows, nodeRow{Node: status.Node{Name: m.Node, Instance: m.Instance, State: status.Gone}, Member: &s.Members[i]})
		}
	}
	slices.SortStableFunc(rows, func(x, y nodeRow) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Instance, y.Instance))
	})
	return rows
}

// shownMoves bounds the moves of a plan that are listed.
const shownMoves = 500

// planBody is the page of a dry run.
type planBody struct {
	Add, Remove string
	Nodes       []string // that live
	Asked       bool
	Moves       []status.Move
	Total       int
	Flows       []flow
	Refused     string // why there is no plan
}

// flow is the number of shards that would go from a node to another.
type flow struct {
	From, To string
	Shards   int
}

// planPage shows which shards would move if nodes joined or left. It is a dry run and moves nothing. A refused
// plan is shown with its reason beside the form.
func (d *Dashboard) planPage(r *http.Request) (view, error) {
	values := r.URL.Query()
	b := planBody{Add: values.Get("add"), Remove: values.Get("remove"), Asked: values.Has("add") || values.Has("remove")}
	for _, n := range d.sampler.await(r.Context(), "", isRecent).Status.Nodes {
		if n.State == status.Live {
			b.Nodes = append(b.Nodes, n.Name)
		}
	}
	v := view{Page: "plan", Title: "Plan", Nav: "/plan"}
	for field, list := range values { // people write spaces, too
		values.Set(field, strings.Join(strings.FieldsFunc(list[0], func(r rune) bool { return r == ',' || r == ' ' }), ","))
	}
	add, remove, err := web.PlanQuery(values)
	if err == nil && b.Asked {
		err = d.dryRun(r, &b, add, remove)
	}
	if err != nil && isRedisAway(err) {
		return view{}, err
	}
	if err != nil {
		b.Refused = err.Error()
		v.Status = http.StatusBadRequest
	}
	v.Body = b
	return v, nil
}

func (d *Dashboard) dryRun(r *http.Request, b *planBody, add, remove []string) error {
	moves, err := d.cfg.Cluster.Plan(r.Context(), add, remove)
	b.Total, b.Flows, b.Moves = len(moves), flowsOf(moves), moves[:min(len(moves), shownMoves)]
	return err
}

func flowsOf(moves []status.Move) []flow {
	counts := map[[2]string]int{}
	for _, m := range moves {
		counts[[2]string{m.From, m.To}]++
	}
	var flows []flow
	for ends, n := range counts {
		flows = append(flows, flow{ends[0], ends[1], n})
	}
	slices.SortFunc(flows, func(x, y flow) int {
		return cmp.Or(cmp.Compare(x.From, y.From), cmp.Compare(x.To, y.To))
	})
	return flows
}
