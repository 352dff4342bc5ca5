package browse

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/packed"
)

// A cursor is a place in a list, never an offset: what comes and goes before it does not shift what
// comes after it. It is opaque, and carries the shape of its query, as a place in one list means
// nothing in another.

type cursor struct {
	Shape uint32    `json:"q"`
	After *sortKey  `json:"a,omitempty"` // in a list that is sorted whole: the last job shown
	Walk  *position `json:"w,omitempty"` // in a list that is walked through
	Part  *look     `json:"p,omitempty"` // in a list that is searched: the id that comes next, of which a part was looked at
	Bulk  *bulk     `json:"b,omitempty"`
}

// sortKey is a job's place in a sorted list.
type sortKey struct {
	Retries int    `json:"r,omitempty"`
	At      int64  `json:"t,omitempty"` // us
	ID      []byte `json:"i"`
}

// position is where a walk stands.
type position struct {
	Phase int            `json:"p,omitempty"`
	Timed *entry         `json:"t,omitempty"` // in sorted sets: the last id seen, of all shards
	Group int            `json:"g,omitempty"` // in lines: which shards are walked through together
	Line  map[int]recent `json:"l,omitempty"` // the last ids seen, by shard
	Shard int            `json:"s,omitempty"` // in hashes: the shard, HSCAN's cursor and what it gave beyond the page
	Hash  string         `json:"h,omitempty"`
	Rest  [][]byte       `json:"m,omitempty"`
	Look  []look         `json:"k,omitempty"` // in a search: ids that are to be looked at before the scan goes on
}

// recent is the last entries seen of a line, last first. If the last one has moved, the place is
// the one before.
type recent []entry

// recentLength is how many entries of a line may move between two pages before the place is lost.
const recentLength = 3

func (t recent) and(m entry) recent {
	return append(recent{m}, t[:min(len(t), recentLength-1)]...)
}

// entry is an entry of a line or a sorted set. At is -1 for an entry without a job.
type entry struct {
	At int64  `json:"t"` // us
	ID []byte `json:"i"`
}

// shape is a number for what must not change between pages.
func (query Query) shape(use string, j *Jobs) uint32 {
	text := fmt.Sprintf("%s %q %q %d %q %q %q %q %q %d %d %d %d %t", use, j.q.Name, j.shards[0].Keys().Jobs, j.q.Shards, query.State, query.By, query.Kind,
		query.MinID, query.MaxID, micros(query.MinTime), micros(query.MaxTime), query.MinRetry, query.MaxRetry, query.Reverse)
	if query.Search != (Search{}) {
		text += fmt.Sprintf(" %q", query.Search)
	}
	if query.Waiting {
		text += " waiting"
	}
	return crc32.ChecksumIEEE([]byte(text))
}

func (c cursor) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // it holds numbers, bytes and strings
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// readCursor reads a cursor; that of the first page is empty.
func (j *Jobs) readCursor(shape uint32, text string) (cursor, error) {
	if text == "" {
		return cursor{Shape: shape}, nil
	}
	var c cursor
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil || !c.Walk.valid(j.q.Shards) || !c.Part.valid() || c.Walk == nil && (c.After == nil && c.Part == nil || c.Bulk != nil) {
		return c, refuse("the cursor is damaged: want one that a page has given as its next")
	}
	if c.Shape != shape {
		return c, refuse("the cursor belongs to another query: repeat the one that gave it, or begin without a cursor")
	}
	return c, nil
}

func (p *position) valid(shards int) bool {
	if p == nil {
		return true
	}
	for i, seen := range p.Line {
		if i < 0 || i >= shards || len(seen) > recentLength { // each is looked for in the line
			return false
		}
	}
	if _, err := strconv.ParseUint(p.Hash, 10, 64); err != nil && p.Hash != "" {
		return false
	}
	for i := range p.Look {
		if !p.Look[i].valid() {
			return false
		}
	}
	return p.Phase >= 0 && p.Group >= 0 && p.Shard >= 0 && p.Shard <= shards
}

func (l *look) valid() bool {
	return l == nil || len(l.ID) > 0 && (len(l.Key) == 0 || len(l.Key) == packed.KeyBytes && l.Key[packed.KeyBytes-1] != math.MaxUint8)
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return -1
	}
	return t.UnixMicro()
}

func microsTime(us int64) time.Time { return time.UnixMicro(us) }
