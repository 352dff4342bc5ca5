package node

import (
	"cmp"
	"time"

	"github.com/lowkiq/lowkiq/internal/journal"
)

// Journal says of which runs a queue keeps a line, and for how long. A run is one handler call for one id. Lines
// are kept by shard: each has its part of Keep, and drops what is too much when it writes, so that up to a tenth
// more are there meanwhile.
type Journal struct {
	Runs JournalRuns   // default JournalFailures
	Keep int           // lines of the queue. Default: 64 per shard for failures, 50,000 in all for all runs
	For  time.Duration // 0: however old
}

// JournalRuns are the runs of which a queue keeps lines. Crashes are among them always.
type JournalRuns string

// The runs of a journal.
const (
	JournalFailures = JournalRuns(journal.Failures) // those that failed
	JournalAll      = JournalRuns(journal.All)
	JournalNone     = JournalRuns(journal.None)
)

func (j Journal) withDefaults(shards int) Journal {
	j.Runs = cmp.Or(j.Runs, JournalFailures)
	if j.Keep == 0 && j.Runs == JournalAll {
		j.Keep = 50_000
	}
	j.Keep = cmp.Or(j.Keep, journal.Default.Keep*shards)
	return j
}

// perShard is what one shard does of it.
func (j Journal) perShard(shards int) journal.Rule {
	shards = max(1, shards)
	j = j.withDefaults(shards)
	return journal.Rule{Runs: journal.Runs(j.Runs), Keep: (j.Keep + shards - 1) / shards, For: j.For}
}
