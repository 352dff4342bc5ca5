// Package browse lists the jobs of a queue for people and programs, and changes them on request.
//
// [Jobs] gives access to the jobs of a queue: pages of a list ([Jobs.Page]), a single id
// ([Jobs.Job]), groups of errors ([Jobs.Errors]), the journal ([Jobs.Runs]), and the table of
// [Actions] on jobs that are named ([Jobs.Apply]) or found by a query ([Jobs.Bulk]). Producers and
// workers do not need this package.
package browse

import (
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Jobs gives access to the jobs of a queue. It is safe for concurrent use.
type Jobs struct {
	q      *protocol.Queue
	db     *redisdb.DB
	shards []*protocol.Shard // by index

	patience time.Duration // how long a search works on a page, full or not
}

// Of returns the jobs of a queue.
func Of(q *protocol.Queue) *Jobs {
	q = q.Latest()
	return &Jobs{q: q, db: q.Shard(0).DB(), shards: q.All(), patience: searchTime}
}
