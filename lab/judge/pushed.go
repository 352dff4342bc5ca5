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
	Score  float64       // the score of the push; scores that Redis chose cannot be judged
	Digest uint64        // [Digest] of the payload
	At     time.Duration // [Now] just before the push was sent; 0 if it is not known
	// Optional payloads need not be handled, because the answer to the push was lost or the payload is in the morgue.
	Optional bool
}

// PushedOf returns the payload of an acknowledged push that was sent at the given time. The push must have a score.
func PushedOf(queue string, push lowkiq.Push, at time.Duration) Pushed {
	return Pushed{Queue: queue, ID: push.ID, Score: *push.Score, Digest: Digest(push.Payload), At: at}
}

// entry is a pushed payload with its handling. Among payloads of an id with equal score and digest, the first pushed entry
// has the counts. The others lead to it by twin.
type entry struct {
	payload
	key      int32
	order    int32 // position in the order of pushes
	at       int64
	equals   int32 // the number of pushes that this entry counts; 0 unless it is the first
	twin     int32 // index of the entry with the same digest and the next score that is not higher; -1 for none
	handled  int32 // successful calls
	spent    int32 // successful calls that do not look like a repeat of the call before
	caused   int32 // successful calls after a death of the process of the call before
	last     int32 // the latest successful call; -1 for none
	stamp    int32 // the latest call that has it
	optional bool
	excused  bool // overtaken and reported already
	again    bool // the id has other pushes with the same digest
}

// ledger has the pushed payloads per key in the order of I3: by score, then by the order of pushes.
type ledger struct {
	entries []entry
	latest  map[string]bool // queues where later pushes replace waiting pushes
	begin   []int32         // by key, the index of its first entry; a last element has the end
}

// newLedger sorts the pushed payloads into a ledger. The order of equal scores is the order of pushed.
func newLedger(pushed iter.Seq[Pushed], t *table, latest []string) *ledger {
	l := ledger{latest: map[string]bool{}}
	for _, queue := range latest {
		l.latest[queue] = true
	}
	for p := range pushed {
		l.entries = append(l.entries, entry{
			payload: payload{p.Score, p.Digest}, key: t.keyOf([]byte(p.Queue), []byte(p.ID)),
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

// linkTwins chains equal payloads of a key, from larger scores to smaller scores.
func (l *ledger) linkTwins() {
	latest := map[uint64]int32{} // by digest, the counting entry of the highest score so far
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

// entriesOf returns the entries of a key.
func (l *ledger) entriesOf(key int32) []entry { return l.entries[l.begin[key]:l.begin[key+1]] }

// findEntry returns the index of the entry that counts p, -1 if p was not pushed. Entries with equal scores are compared in
// turn.
func (l *ledger) findEntry(key int32, p payload) int32 {
	entries := l.entriesOf(key)
	i, _ := slices.BinarySearchFunc(entries, p.score, func(e entry, score float64) int { return cmp.Compare(e.score, score) })
	for ; i < len(entries) && entries[i].score == p.score; i++ {
		if entries[i].digest == p.digest {
			return l.begin[key] + int32(i)
		}
	}
	return -1
}

// eachTwin yields an entry and the equal payloads whose score is not higher. The entry may have been merged into any of
// them.
func (l *ledger) eachTwin(i int32) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for i >= 0 && yield(&l.entries[i]) {
			i = l.entries[i].twin
		}
	}
}
