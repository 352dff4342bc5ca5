package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
)

// floodBody has the groups with the most waiting jobs of a queue that lags.
type floodBody struct {
	Queue    string
	By       string // the separator, which ends the prefix that names a group
	Rows     []floodRow
	More     int // groups that are not shown
	Outside  int // jobs in no group
	Examined int
	All      bool
	Now      time.Time
	Holds    bool // the page offers to hold a group
}

// floodRow is a group.
type floodRow struct {
	browse.GroupCount
	Share float64 // of the examined jobs
	groupLine
}

// Calls returns the number of the group's ids in handler calls.
func (r floodRow) Calls() (n int) {
	for _, h := range r.Holders {
		n += h.Permits
	}
	return n
}

const (
	floodRows = 8
	floodLag  = time.Second // a queue with a smaller lag has no flood
)

// readFlood counts the waiting jobs of a queue by group. It returns nil if they are in no groups.
func (d *Dashboard) readFlood(ctx context.Context, name string) (*floodBody, error) {
	q, err := d.client.Queue(ctx, name)
	if err != nil {
		return nil, err
	}
	b := &floodBody{Queue: name}
	if b.By, err = d.separatorOf(ctx, name); err != nil {
		return nil, err
	}
	counts, err := browse.Of(q).Groups(ctx, b.By)
	if err != nil || len(counts.Groups) == 0 {
		return nil, err
	}
	if b.Now, err = d.client.Time(ctx); err != nil {
		return nil, err
	}
	b.Outside, b.Examined, b.All = counts.Outside, counts.Examined, counts.All
	b.More = max(0, len(counts.Groups)-floodRows)
	for _, of := range counts.Groups[:len(counts.Groups)-b.More] {
		state, err := d.client.Group(ctx, name, of.Group)
		if err != nil {
			return nil, err
		}
		b.Rows = append(b.Rows, floodRow{of, float64(of.Jobs) / float64(counts.Examined), groupLineOf(&state, b.Now)})
	}
	return b, nil
}

// separatorOf returns the separator that ends the prefix of a group, by the rules that this node knows.
func (d *Dashboard) separatorOf(ctx context.Context, name string) (string, error) {
	known, err := web.RulesOf(ctx, d.node, name)
	if err != nil {
		return "", err
	}
	var groups struct{ By string }
	for _, rule := range known.Rules {
		if rule.Key == "groups" {
			_ = json.Unmarshal(rule.Value, &groups) // "none" is no object, and names none
		}
	}
	return cmp.Or(groups.By, rules.DefaultBy), nil
}
