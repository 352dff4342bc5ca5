package browse

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// TagCount says how many jobs have a tag, and how many of their payloads.
type TagCount struct {
	Tag      string
	Jobs     int
	Payloads int
}

// TagPage is what a part of a queue's jobs has of tags.
type TagPage struct {
	Counts   []TagCount // most jobs first
	Examined int        // jobs looked at
	Through  float64    // the share of all jobs that the pages up to this one have looked through, 0 to 1
	Next     string     // cursor of the next page, "" after the last one
}

// Bounds of a page: mostTags is how many tags it has, about. An id of which a part was counted is counted to its end, but for one that
// has ten times as many, or takes ten times as long as a search has for a page.
const (
	mostTags  = 1000
	wholeID   = 10
	tagsBytes = searchBytes / 4 // that one script looks through: of it all may be tags
)

// Tags counts the tags of a queue's jobs, page by page, as a search goes through them; in StateMorgue those of buried ones.
// The counts of all pages together are those of the queue, but for what moves meanwhile: a job counts twice where Redis changes
// the size of its table. One with so many tags or payloads that they are on several pages counts on each of them; its payloads count once.
func (j *Jobs) Tags(ctx context.Context, in State, at string) (TagPage, error) {
	if in != "" && in != StateMorgue {
		return TagPage{}, refuse("tags of state %q: want morgue, or none for all others", in)
	}
	cur, err := j.readCursor((&Query{State: in}).shape("tags", j), at)
	if err != nil {
		return TagPage{}, err
	}
	if cur.Walk == nil {
		cur.Walk = &position{}
	}
	s := &scan{seeker: seeker{jobs: j, from: in, bytes: tagsBytes, tag: `"tag":"`}, at: cur.Walk, count: searchLeast}
	c := tagCounter{counts: map[string]*TagCount{}, begun: map[string]map[string]bool{}}
	var page TagPage
	began := time.Now()
	for steps := 0; !s.ended(); steps++ {
		took := time.Since(began)
		if s.ends = len(c.counts) >= mostTags || steps > 0 && took >= searchTime; s.ends && !s.halfway() {
			break
		}
		if len(c.counts) >= wholeID*mostTags || took >= wholeID*searchTime {
			break
		}
		r, err := s.step(ctx)
		if err != nil {
			return TagPage{}, err
		}
		if s.fewer(r, 0) {
			continue
		}
		c.add(r)
		page.Examined += r.looked
		s.advance(r)
	}
	if !s.ended() {
		page.Next = cur.String()
	}
	page.Counts, page.Through = c.sorted(), s.through()
	return page, nil
}

type tagCounter struct {
	counts map[string]*TagCount
	begun  map[string]map[string]bool // of ids of which there is more to look at: the tags that count them already
}

func (c *tagCounter) add(r sought) {
	counted := map[string]map[string]bool{}
	for _, f := range r.finds {
		if counted[f.id] == nil {
			if counted[f.id] = c.begun[f.id]; counted[f.id] == nil {
				counted[f.id] = map[string]bool{}
			}
		}
		for _, p := range f.payloads() {
			for _, tag := range p.Header.Tags() {
				count := c.counts[tag]
				if count == nil {
					count = &TagCount{Tag: tag}
					c.counts[tag] = count
				}
				if count.Payloads++; !counted[f.id][tag] {
					count.Jobs++
					counted[f.id][tag] = true
				}
			}
		}
	}
	for _, l := range r.left {
		if id := string(l.ID); counted[id] != nil {
			c.begun[id] = counted[id]
		}
	}
}

func (c *tagCounter) sorted() []TagCount {
	all := make([]TagCount, 0, len(c.counts))
	for _, count := range c.counts {
		all = append(all, *count)
	}
	slices.SortFunc(all, func(x, y TagCount) int { return cmp.Or(y.Jobs-x.Jobs, strings.Compare(x.Tag, y.Tag)) })
	return all
}
