package dashboard

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/status"
)

// nodesBody is the page of the nodes.
type nodesBody struct {
	Status status.Status
	Voters int
	Nodes  []nodeRow
	Gossip bool // the answering node gossips
	Now    time.Time
	Acts   bool // the visitor may drain
}

// nodeRow is one instance, by its lease and by gossip.
type nodeRow struct {
	status.Node
	Leased bool
	Leader bool
	Member *status.Member // nil: gossip does not know it
	Action *action        // drain, or its undoing; nil: not now, or not by this visitor
}

// Link is where the node's own pages are, "" if it does not say.
func (n nodeRow) Link() string {
	if strings.HasPrefix(n.HTTP, "http://") || strings.HasPrefix(n.HTTP, "https://") {
		return n.HTTP
	}
	return ""
}

func (d *Dashboard) nodesPage(r *http.Request) (view, error) {
	return d.nodesView(d.sampler.await(r.Context(), "", recent), visitOf(r))
}

func (d *Dashboard) nodesView(s *snapshot, v visit) (view, error) {
	b := nodesBody{Status: s.Status, Nodes: nodeRows(s, v.acts), Gossip: len(s.Members) > 0, Now: s.At, Acts: v.acts}
	for _, n := range b.Nodes {
		if n.Voter {
			b.Voters++
		}
	}
	return view{Page: "nodes", Title: "Nodes", Nav: "/nodes", Live: liveURL(v.URL), Body: b}, nil
}

// nodeRows joins leases and gossip: who is known to only one of them is shown as well.
func nodeRows(s *snapshot, acts bool) []nodeRow {
	var rows []nodeRow
	known := map[string]bool{}
	for _, n := range s.Status.Nodes {
		row := nodeRow{Node: n, Leased: n.State != status.Gone, Leader: n.Name == s.Status.Leader && n.State != status.Gone}
		for i, m := range s.Members {
			if m.Instance == n.Instance {
				row.Member = &s.Members[i]
			}
		}
		if row.Leased && acts {
			name := "drain"
			if n.State == status.Draining {
				name = "undrain"
			}
			row.Action = &buttons(name)[0]
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
