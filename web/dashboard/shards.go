package dashboard

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/status"
)

// The map of shards has rows of cells. A cell is a shard, with the colour and the letters of its owner.
const (
	mapRows    = 25  // queues on a page
	mapCells   = 500 // shards of a queue that are drawn; its own page has all
	mapColours = 12  // colours of nodes; the letters tell more nodes apart
)

// shardsBody is the page of the map.
type shardsBody struct {
	Legend []legendEntry
	Rows   []mapRow
	Filter string
	Pager  pager
	Moving int // shards that are not with the node that should own them
	Shards int // that have been read
	Read   bool
}

type legendEntry struct {
	Node   string
	Mark   string
	Colour int
	Shards int
	State  status.NodeState
}

type mapRow struct {
	Queue   string
	Shards  int
	Cells   []mapCell
	Summary string
	More    int // shards that are not drawn
}

type mapCell struct {
	Mark, Class, Title string
}

func (d *Dashboard) shardsView(s *snapshot, v access) (view, error) {
	values := v.Query()
	rows, _ := sortedQueues(s.Queues, values.Get("q"), "name")
	b := shardsBody{Filter: values.Get("q"), Read: !s.At.IsZero(), Pager: pagerOf(v.URL, values.Get("page"), len(rows), mapRows)}
	owned := map[string]int{}
	for _, f := range s.Queues {
		b.Shards += len(f.Shards)
		for _, shard := range f.Shards {
			owned[shard.holder()]++
			if shard.State != status.Owned {
				b.Moving++
			}
		}
	}
	b.Legend = legendOf(s.Status.Nodes, owned)
	for _, f := range rows[b.Pager.From:b.Pager.To] {
		b.Rows = append(b.Rows, mapRowOf(f, b.Legend))
	}
	return view{Page: "shards", Title: "Shards", Nav: "/shards", Live: liveURL(v.URL), Body: b}, nil
}

// legendOf gives every node a mark and a colour, in the order of their names. Nodes that are gone and still own shards
// have an entry as well.
func legendOf(nodes []status.Node, owned map[string]int) []legendEntry {
	states := map[string]status.NodeState{}
	for _, n := range nodes {
		if states[n.Name] == "" || n.State == status.Live {
			states[n.Name] = n.State
		}
	}
	for node := range owned {
		if node != "" && states[node] == "" {
			states[node] = status.Gone
		}
	}
	var legend []legendEntry
	for i, name := range sortedKeys(states) {
		legend = append(legend, legendEntry{Node: name, Mark: markOf(i), Colour: i % mapColours, Shards: owned[name], State: states[name]})
	}
	return legend
}

// markOf returns A to Z, then AA and so on.
func markOf(i int) string {
	if i < 26 {
		return string(rune('A' + i))
	}
	return markOf(i/26-1) + markOf(i%26)
}

func mapRowOf(f *figures, legend []legendEntry) mapRow {
	row := mapRow{Queue: f.Name, Shards: f.Entry.Shards, Summary: summaryOf(f.Shards), More: max(0, len(f.Shards)-mapCells)}
	byNode := map[string]legendEntry{}
	for _, entry := range legend {
		byNode[entry.Node] = entry
	}
	for i, s := range f.Shards[:min(len(f.Shards), mapCells)] {
		row.Cells = append(row.Cells, cellOf(f.Name, i, s, byNode))
	}
	return row
}

// cellOf returns the cell of a shard. Its letters and its title say everything that the colour says, for people who
// do not see the colour.
func cellOf(queue string, index int, s shardFigures, byNode map[string]legendEntry) mapCell {
	c := mapCell{Title: queue + "/" + strconv.Itoa(index) + ": "}
	if node := s.holder(); node != "" {
		entry := byNode[node]
		c.Mark, c.Class = entry.Mark, "n"+strconv.Itoa(entry.Colour)
		c.Title += node
	}
	switch s.State {
	case status.Owned:
	case status.Leaving:
		c.Class += " leaving"
		c.Title += ", on its way to " + cmp.Or(s.Assigned, "another node")
	case status.Claiming:
		c.Mark, c.Class = "…", "claiming"
		c.Title += "to be claimed by " + cmp.Or(s.Assigned, "a node")
	default:
		c.Mark, c.Class = "–", "nobody"
		c.Title += "nobody owns it"
	}
	return c
}

// summaryOf says in words what the cells show.
func summaryOf(shards []shardFigures) string {
	if len(shards) == 0 {
		return "not read yet"
	}
	var parts []string
	nobody, leaving := 0, 0
	for _, owner := range ownersOf(shards) {
		if owner.Node == "" {
			nobody = owner.Shards
			continue
		}
		parts = append(parts, owner.Node+" "+formatCount(owner.Shards))
	}
	for _, s := range shards {
		if s.State == status.Leaving {
			leaving++
		}
	}
	if leaving > 0 {
		parts = append(parts, formatCount(leaving)+" moving")
	}
	if nobody > 0 {
		parts = append(parts, formatCount(nobody)+" without an owner")
	}
	return strings.Join(parts, ", ")
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
