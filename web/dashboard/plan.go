package dashboard

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/status"
)

// shownMoves is how many moves of a plan are listed one by one.
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

// flow is how many shards would go from one node to another.
type flow struct {
	From, To string
	Shards   int
}

func (d *Dashboard) planPage(r *http.Request) (view, error) {
	values := r.URL.Query()
	b := planBody{Add: values.Get("add"), Remove: values.Get("remove"), Asked: values.Has("add") || values.Has("remove")}
	for _, n := range d.sampler.await(r.Context(), "", recent).Status.Nodes {
		if n.State == status.Live {
			b.Nodes = append(b.Nodes, n.Name)
		}
	}
	v := view{Page: "plan", Title: "Plan", Nav: "/plan"}
	add, remove, err := namesOf(b.Add, b.Remove)
	if err == nil && b.Asked {
		err = d.dryRun(r, &b, add, remove)
	}
	if err != nil && away(err) {
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
	moves, err := d.node.Plan(r.Context(), add, remove)
	b.Total, b.Flows, b.Moves = len(moves), flowsOf(moves), moves[:min(len(moves), shownMoves)]
	return err
}

// namesOf reads two lists of names with commas or spaces between them.
func namesOf(lists ...string) (add, remove []string, err error) {
	var read [2][]string
	for i, list := range lists {
		read[i] = strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
		for _, name := range read[i] {
			if err := queue.CheckName("node", name); err != nil {
				return nil, nil, err
			}
		}
	}
	return read[0], read[1], nil
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
