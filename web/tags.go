package web

import (
	"net/http"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Tags has the counts of tags in a part of a queue's jobs. The counts of all parts together are those of the queue.
type Tags struct {
	Tags     []TagCount `json:"tags"` // most jobs first
	More     bool       `json:"more"`
	Next     string     `json:"next"`     // cursor of the next part; empty after the last part
	Examined int        `json:"examined"` // jobs that were examined
	Through  float64    `json:"through"`  // share of all jobs that were examined up to here, 0 to 1
}

// TagCount has the numbers of jobs and payloads with a tag.
type TagCount struct {
	Tag      string `json:"tag"`
	Jobs     int    `json:"jobs"`
	Payloads int    `json:"payloads"`
}

// tagLists are the lists of jobs whose tags can be counted.
var tagLists = Lists{States: []browse.State{"", browse.StateMorgue}, Orders: []browse.Order{browse.ByID}}

// countTags counts tags in the next part of the jobs. The client adds up the parts, because a count of a large
// queue at once would keep Redis busy for too long.
func (a *api) countTags(q *protocol.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	query, err := tagLists.Query(r.URL.Query())
	if err != nil {
		return nil, err
	}
	page, err := browse.Of(q).Tags(r.Context(), query.State, query.Cursor)
	if err != nil {
		return nil, err
	}
	answer := Tags{Tags: make([]TagCount, len(page.Counts)), More: page.Next != "", Next: page.Next, Examined: page.Examined, Through: page.Through}
	for i, c := range page.Counts {
		answer.Tags[i] = TagCount(c)
	}
	return answer, nil
}
