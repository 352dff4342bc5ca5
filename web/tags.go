package web

import (
	"net/http"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
)

// Tags are what a part of a queue's jobs has of tags: the counts of all parts together are those of the queue.
type Tags struct {
	Tags     []TagCount `json:"tags"` // most jobs first
	More     bool       `json:"more"`
	Next     string     `json:"next"`     // cursor of the next part; empty after the last one
	Examined int        `json:"examined"` // jobs looked at
	Through  float64    `json:"through"`  // share of all jobs up to here, 0 to 1
}

// TagCount says how many jobs have a tag, and how many of their payloads.
type TagCount struct {
	Tag      string `json:"tag"`
	Jobs     int    `json:"jobs"`
	Payloads int    `json:"payloads"`
}

// bytesOfTags is what an answer about tags costs until it is written: there are about a thousand, of which few are long, or some ten
// thousand where somebody makes up tags.
const bytesOfTags = 4 << 20

var tagsQuery = []string{"state", "cursor"}

// tagLists are what tags can be counted of.
var tagLists = Lists{States: []browse.State{"", browse.StateMorgue}, Orders: []browse.Order{browse.ByID}}

func (a *api) tags(q *queue.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	query, err := tagLists.Query(r.URL.Query())
	if err != nil {
		return nil, err
	}
	if err := accountOf(r).take(bytesOfTags); err != nil {
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
