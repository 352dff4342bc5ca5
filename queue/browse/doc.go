// Package browse shows a queue's jobs to people and programs, and does what they ask for.
//
// [Jobs] are those of one queue: pages of a list ([Jobs.Page]), one id ([Jobs.Job]), kinds of
// errors ([Jobs.Errors]), how runs ended ([Jobs.Runs]), and the table of [Actions] on
// jobs that are named ([Jobs.Apply]) or found by a query ([Jobs.Bulk]). A producer or a worker
// needs none of it.
package browse

import (
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// Jobs are those of one queue. It is safe for concurrent use.
type Jobs struct {
	q      *queue.Queue
	db     *redisdb.DB
	shards []*queue.Shard // by index

	patience time.Duration // that a search has for a page
}

// Of returns the jobs of a queue.
func Of(q *queue.Queue) *Jobs {
	return &Jobs{q: q, db: q.Shard(0).DB(), shards: q.All(), patience: searchTime}
}
