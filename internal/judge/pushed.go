package judge

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Pushed is a payload that a push has put into a queue.
type Pushed struct {
	Queue  string
	ID     string
	Score  float64       // as pushed; the judge cannot judge scores that Redis chose
	Digest uint64        // [Digest] of the payload
	At     time.Duration // [Now] just before the push was sent; 0 = unknown
	// Optional payloads may have been handled and need not: the push's answer was
	// lost, or the payload is in the morgue.
	Optional bool
}

// PushedOf is what the judge has to know of an acknowledged push that was sent
// at at. The push must carry a score.
func PushedOf(queue string, push lowkiq.Push, at time.Duration) Pushed {
	return Pushed{Queue: queue, ID: push.ID, Score: *push.Score, Digest: Digest(push.Payload), At: at}
}

// entry is a pushed payload and what became of it. Of equal (score, digest) of an
// id the one pushed first keeps the books; twin leads from the others to it.
type entry struct {
	payload
	key      int32
	order    int32 // position in the order of pushes
	at       int64
	equals   int32 // how many pushes this entry keeps the books of; 0 = not the first
	twin     int32 // index of an entry with the same digest and the next smaller or equal score; -1 = none
	handled  int32 // calls that succeeded
	spent    int32 // of these, calls that did not look like a repeat of the one before
	caused   int32 // of these, calls after a death of the process of the one before
	last     int32 // the latest of them; -1 = none
	stamp    int32 // the call at hand has it
	optional bool
	excused  bool // overtaken, and reported once
	again    bool // not the only push of its digest to the id
}

// ledger is what was pushed, per key, in the order of I3: sorted by (score, order).
type ledger struct {
	entries []entry
	latest  map[string]bool // queues in which later pushes take the place of those that wait
	begin   []int32         // key -> index of its first entry; one more at the end
}

func newLedger(pushed iter.Seq[Pushed], t *table, latest []string) *ledger {
	l := ledger{latest: map[string]bool{}}
	for _, queue := range latest {
		l.latest[queue] = true
	}
	for p := range pushed {
		l.entries = append(l.entries, entry{
			payload: payload{p.Score, p.Digest}, key: t.key([]byte(p.Queue), []byte(p.ID)),
			order: int32(len(l.entries)), at: int64(p.At), twin: -1, last: -1, stamp: -1, optional: p.Optional,
		})
	}
	slices.SortFunc(l.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.score, b.score), cmp.Compare(a.order, b.order))
	})
	l.begin = make([]int32, len(t.keys.list)+1)
	for _, e := range l.entries {
		l.begin[e.key+1]++
	}
	for i := range t.keys.list {
		l.begin[i+1] += l.begin[i]
	}
	l.linkTwins()
	return &l
}

// linkTwins chains equal payloads of a key, from larger scores to smaller ones.
func (l *ledger) linkTwins() {
	latest := map[uint64]int32{} // digest -> who keeps the books of the highest score so far
	for i := range l.entries {
		e := &l.entries[i]
		if i == 0 || l.entries[i-1].key != e.key {
			clear(latest)
		}
		books := int32(i)
		if twin, ok := latest[e.digest]; ok {
			e.twin, e.again, l.entries[twin].again = twin, true, true
			if l.entries[twin].score == e.score {
				books = twin
			}
		}
		l.entries[books].equals++
		latest[e.digest] = books
	}
}

// of returns the entries of a key.
func (l *ledger) of(key int32) []entry { return l.entries[l.begin[key]:l.begin[key+1]] }

// find returns the index of the entry that keeps the books of p, -1 if p was not
// pushed. Of equal scores it looks at one after the other.
func (l *ledger) find(key int32, p payload) int32 {
	entries := l.of(key)
	i, _ := slices.BinarySearchFunc(entries, p.score, func(e entry, score float64) int { return cmp.Compare(e.score, score) })
	for ; i < len(entries) && entries[i].score == p.score; i++ {
		if entries[i].digest == p.digest {
			return l.begin[key] + int32(i)
		}
	}
	return -1
}

// twins yields e and the equal payloads with smaller or equal scores, in one of
// which e may have been merged.
func (l *ledger) twins(i int32) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for i >= 0 && yield(&l.entries[i]) {
			i = l.entries[i].twin
		}
	}
}
