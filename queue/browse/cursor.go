package browse

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"regexp"
	"strconv"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/packed"
)

// A cursor is a place in a list and never an offset. So jobs that come or go before the place do
// not shift the jobs after it. A cursor is opaque. It carries a hash of its query, because a place
// in one list has no meaning in another list.

type cursor struct {
	Shape uint32     `json:"q"`
	After *sortKey   `json:"a,omitempty"` // for a list that is sorted as a whole: the last job shown
	Walk  *position  `json:"w,omitempty"` // for a list that is read in stored order
	Part  *pendingID `json:"p,omitempty"` // for a search in a list: the next id, if the search stopped within it
	Bulk  *bulk      `json:"b,omitempty"`
}

// sortKey is a job's place in a sorted list.
type sortKey struct {
	Retries int    `json:"r,omitempty"`
	At      int64  `json:"t,omitempty"` // us
	ID      []byte `json:"i"`
}

// position is the place of a walker. Each kind of walker uses some of the fields.
type position struct {
	Phase int            `json:"p,omitempty"`
	Timed *entry         `json:"t,omitempty"` // sorted sets: the last id seen, of all shards
	Group int            `json:"g,omitempty"` // ready lists: the group of shards that are read together
	Line  map[int]recent `json:"l,omitempty"` // ready lists: the last ids seen, by shard
	Shard int            `json:"s,omitempty"` // hashes: the shard, HSCAN's cursor and the ids that it returned beyond the page
	Hash  string         `json:"h,omitempty"`
	Rest  [][]byte       `json:"m,omitempty"`
	Look  []pendingID    `json:"k,omitempty"` // searches: ids to search before the scan continues
}

// recent lists the last entries seen of a ready list, newest first. If the newest entry has moved,
// the place is behind the entry before it.
type recent []entry

// recentLength is how many entries of a ready list may move between two pages before the place is
// lost.
const recentLength = 3

func (t recent) prepend(m entry) recent {
	return append(recent{m}, t[:min(len(t), recentLength-1)]...)
}

// entry is an entry of a ready list or a sorted set. At is -1 for an entry without a job.
type entry struct {
	At    int64  `json:"t"` // us
	ID    []byte `json:"i"`
	Front string `json:"f,omitempty"` // of a ready job: "s" for a suspect, "u" and its score for an urgent id
}

const suspectFront = "s"

var frontPattern = regexp.MustCompile(`^(s|u[0-9]{1,16})?$`)

// hashShape returns a hash of everything that must stay the same between pages.
func (query Query) hashShape(use string, j *Jobs) uint32 {
	text := fmt.Sprintf("%s %q %q %d %q %q %q %q %q %d %d %d %d %t", use, j.q.Name, j.shards[0].Keys().Jobs, j.q.Shards, query.State, query.By, query.Kind,
		query.MinID, query.MaxID, unixMicros(query.MinTime), unixMicros(query.MaxTime), query.MinRetry, query.MaxRetry, query.Reverse)
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

// readCursor decodes a cursor. The cursor of the first page is "".
func (j *Jobs) readCursor(shape uint32, text string) (cursor, error) {
	if text == "" {
		return cursor{Shape: shape}, nil
	}
	var c cursor
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil || !c.Walk.isValid(j.q.Shards) || !c.Part.isValid() || c.Walk == nil && (c.After == nil && c.Part == nil || c.Bulk != nil) {
		return c, refuseQuery("the cursor is damaged: it must be the next cursor of a page")
	}
	if c.Shape != shape {
		return c, refuseQuery("the cursor belongs to another query: repeat that query, or begin without a cursor")
	}
	return c, nil
}

func (p *position) isValid(shards int) bool {
	if p == nil {
		return true
	}
	for i, seen := range p.Line {
		if i < 0 || i >= shards || len(seen) > recentLength { // the script looks for each entry in the list
			return false
		}
		for _, e := range seen {
			if !frontPattern.MatchString(e.Front) {
				return false
			}
		}
	}
	if _, err := strconv.ParseUint(p.Hash, 10, 64); err != nil && p.Hash != "" {
		return false
	}
	for i := range p.Look {
		if !p.Look[i].isValid() {
			return false
		}
	}
	return p.Phase >= 0 && p.Group >= 0 && p.Shard >= 0 && p.Shard <= shards
}

func (l *pendingID) isValid() bool {
	return l == nil || len(l.ID) > 0 && (len(l.Key) == 0 || len(l.Key) == packed.KeyBytes && l.Key[packed.KeyBytes-1] != math.MaxUint8)
}

func unixMicros(t time.Time) int64 {
	if t.IsZero() {
		return -1
	}
	return t.UnixMicro()
}

func microsTime(us int64) time.Time { return time.UnixMicro(us) }
