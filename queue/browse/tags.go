package browse

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/process/memory"
)

// TagCount is the number of jobs with a tag, and of their payloads with it.
type TagCount struct {
	Tag      string
	Jobs     int
	Payloads int
}

// TagPage is the tags of a part of a queue's jobs.
type TagPage struct {
	Counts   []TagCount // the tag with the largest number of jobs first
	Examined int        // jobs that were read
	Through  float64    // the share of all jobs, 0 to 1, that this page and the pages before it have read
	Next     string     // cursor of the next page, "" after the last page
}

// Bounds of a page. An id that a page has begun to count is counted to its end, unless the page has
// maxOverrun times maxTags tags or takes maxOverrun times as long as a search may.
const (
	maxTags    = 1000
	maxOverrun = 10
	tagsBytes  = searchBytes / 4 // bytes that a script reads; all of them may be tags
)

// Tags counts the tags of a queue's jobs, page by page, in stored order. In StateMorgue it counts
// those of buried jobs. The counts of all pages add up to those of the queue, except for jobs that
// move meanwhile, and jobs that count twice because Redis resizes its hash table. A job with so
// many tags or payloads that they are on several pages counts on each page, and its payloads count
// once.
func (j *Jobs) Tags(ctx context.Context, in State, at string) (TagPage, error) {
	if in != "" && in != StateMorgue {
		return TagPage{}, refuseQuery("tags of state %q: the state must be morgue, or empty for all others", in)
	}
	cur, err := j.readCursor((&Query{State: in}).hashShape("tags", j), at)
	if err != nil {
		return TagPage{}, err
	}
	if cur.Walk == nil {
		cur.Walk = &position{}
	}
	s := &scan{searcher: searcher{jobs: j, from: in, bytes: tagsBytes, tag: `"tag":"`}, at: cur.Walk, count: minSearchIDs}
	c := tagCounter{counts: map[string]*TagCount{}, begun: map[string]map[string]bool{}}
	var page TagPage
	scoped, end := memory.Scope(ctx)
	defer end()
	if err := memory.Take(scoped, copiesOfFind*tagsBytes); err != nil {
		return TagPage{}, err
	}
	began := time.Now()
	for steps := 0; !s.ended(); steps++ {
		took := time.Since(began)
		if s.ends = len(c.counts) >= maxTags || steps > 0 && took >= searchTime; s.ends && !s.hasPartial() {
			break
		}
		if len(c.counts) >= maxOverrun*maxTags || took >= maxOverrun*searchTime {
			break
		}
		r, err := s.nextStep(ctx)
		if err != nil {
			return TagPage{}, err
		}
		if s.shrinkStep(r, 0) {
			continue
		}
		if err := c.addReply(ctx, r); err != nil {
			return TagPage{}, err
		}
		page.Examined += r.looked
		s.advance(r)
	}
	if !s.ended() {
		page.Next = cur.String()
	}
	page.Counts, page.Through = c.sortedCounts(), s.shareDone()
	return page, nil
}

type tagCounter struct {
	counts map[string]*TagCount
	begun  map[string]map[string]bool // the tags that count an id already, for ids that are not read to their end
}

// bytesOfTag is the memory of a tag besides its text, while it is counted and answered.
const bytesOfTag = 256

func (c *tagCounter) addReply(ctx context.Context, r searchReply) error {
	counted := map[string]map[string]bool{}
	for _, f := range r.finds {
		if counted[f.id] == nil {
			if counted[f.id] = c.begun[f.id]; counted[f.id] == nil {
				counted[f.id] = map[string]bool{}
			}
		}
		for _, p := range f.decodePayloads() {
			for _, tag := range p.Header.Tags() {
				count := c.counts[tag]
				if count == nil {
					if err := memory.Take(ctx, bytesOfTag+4*int64(len(tag))); err != nil {
						return err
					}
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
	return nil
}

func (c *tagCounter) sortedCounts() []TagCount {
	all := make([]TagCount, 0, len(c.counts))
	for _, count := range c.counts {
		all = append(all, *count)
	}
	slices.SortFunc(all, func(x, y TagCount) int { return cmp.Or(y.Jobs-x.Jobs, strings.Compare(x.Tag, y.Tag)) })
	return all
}
