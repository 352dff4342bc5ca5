// Package changes answers one question: who has changed what of a cluster, when and from where?
//
// Each change that a person or a program asks for by the API, the pages or the command line, and what the cluster does
// by itself (who leads, which nodes joined and left, how many shards moved), is a [Line] of one stream of the cluster, of which the last 10,000 or so are kept. A line of a change of rules
// is written with the change, in one script. All others are written right after it: a process that dies
// in between leaves none.
package changes

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Who has asked for a change.
type Who struct {
	Role string `json:"role,omitempty"` // of the token: admin, push, read; anyone, if none was asked for; cluster for what it does itself; "" for a program with Redis's address
	// Name is that of the client's certificate, or, if Claimed, what the client says of itself.
	Name    string `json:"name,omitempty"`
	Claimed bool   `json:"claimed,omitempty"`
	Address string `json:"address,omitempty"` // host:port, as the node saw it
	Node    string `json:"node,omitempty"`    // that was asked
}

// String is for people: its parts are quoted if they are not plain.
func (w Who) String() string {
	name := w.Name
	if name != "" && strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) || r == ' ' || r == '"' }) {
		name = strconv.Quote(name)
	}
	switch {
	case name == "" && w.Role == "":
		return "a program"
	case name == "":
		return w.Role
	case w.Claimed:
		name += "?"
	}
	if w.Role == "" {
		return name
	}
	return name + " (" + w.Role + ")"
}

// Line tells of one change.
type Line struct {
	Cursor string    `json:"cursor"` // its place among all lines
	At     time.Time `json:"at"`     // by Redis's clock
	Who
	Action string          `json:"action"`           // as in pause, rules, requeue
	Queue  string          `json:"queue,omitempty"`  // of which something was changed
	Target string          `json:"target,omitempty"` // the node, the name of what recurs
	IDs    []string        `json:"ids,omitempty"`    // of jobs, the first hundred of those that were named
	Count  int             `json:"count,omitempty"`  // how many jobs were changed
	Old    json.RawMessage `json:"old,omitempty"`    // what it was, if that is a value
	New    json.RawMessage `json:"new,omitempty"`    // what it became; null: nothing
	Why    string          `json:"why,omitempty"`    // as the one who asked for it says
}

const (
	// Kept is how many lines are there at least, of as many changes.
	Kept = 10_000
	// maxText bounds each text of a line, bytes.
	maxText = 1024
	// maxValue bounds old and new, bytes: what is longer is left out.
	maxValue = 8 << 10
	// maxIDs bounds ids, and their bytes.
	maxIDs, maxIDBytes = 100, 16 << 10
)

// Encode is the line as Redis keeps it. Texts that are too long are cut.
func (l Line) Encode() ([]byte, error) {
	for _, text := range []*string{&l.Name, &l.Address, &l.Node, &l.Target, &l.Why} {
		*text = cut(*text)
	}
	for _, value := range []*json.RawMessage{&l.Old, &l.New} {
		if len(*value) > maxValue {
			*value = json.RawMessage(fmt.Sprintf(`"%d bytes"`, len(*value)))
		}
	}
	l.IDs = some(l.IDs)
	return json.Marshal(struct {
		Line
		Cursor *struct{} `json:"cursor,omitempty"` // Redis gives it
		At     *struct{} `json:"at,omitempty"`     // with the time
	}{Line: l})
}

// some are as many ids as a line holds; those that are not UTF-8 are left out.
func some(ids []string) (few []string) {
	size := 0
	for _, id := range ids {
		if size += len(id); len(few) == maxIDs || size > maxIDBytes {
			break
		}
		if utf8.ValidString(id) {
			few = append(few, id)
		}
	}
	return few
}

func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-len("…")], "") + "…"
}

// Log is the stream of a cluster's changes. It is safe for concurrent use.
type Log struct{ db *redisdb.DB }

// In is the log of the cluster that this connection is for.
func In(db *redisdb.DB) Log { return Log{db} }

// Add writes a line. Its cursor and time are Redis's.
func (l Log) Add(ctx context.Context, line Line) error {
	data, err := line.Encode()
	if err != nil {
		return fmt.Errorf("line of a change: %w", err)
	}
	_, err = l.db.Do(ctx, "write down a change", "XADD", l.db.Keys.Changes(), "MAXLEN", "~", Kept, "*", "line", data)
	return err
}

// Query says which lines are wanted: the last ones, the newest first; with After those behind a cursor, the
// oldest first. Zero fields restrict nothing.
type Query struct {
	Queue, Action, Name, ID string
	Since                   time.Time
	After                   string // the cursor of a line; "0" = from the beginning
	Limit                   int    // default 100
	Look                    int    // most lines that are looked at. Default: all there are
}

// most lines that one Read looks at.
const (
	chunk    = 500
	mostRead = 2 * Kept
)

// Read returns lines. next is the cursor of the last line that was looked at, for the next After.
func (l Log) Read(ctx context.Context, q Query) (lines []Line, next string, err error) {
	if q.Limit <= 0 {
		q.Limit = 100
	}
	if q.Look <= 0 {
		q.Look = mostRead
	}
	from, next := "+", q.After
	if q.After != "" {
		from = "(" + q.After
	}
	for looked := 0; looked < q.Look && len(lines) < q.Limit; {
		cmd := []any{"XREVRANGE", l.db.Keys.Changes(), from, "-", "COUNT", chunk}
		if q.After != "" {
			cmd = []any{"XRANGE", l.db.Keys.Changes(), from, "+", "COUNT", chunk}
		}
		reply, err := l.db.Do(ctx, "read what was changed", cmd...)
		if err != nil {
			return nil, "", err
		}
		entries := redisdb.List(reply)
		for _, entry := range entries {
			line, cursor := parse(entry)
			if q.After == "" && !q.Since.IsZero() && line.At.Before(q.Since) {
				return lines, next, nil
			}
			from, next = "("+cursor, cursor
			looked++
			if q.takes(line) {
				if lines = append(lines, line); len(lines) == q.Limit {
					break
				}
			}
		}
		if len(entries) < chunk {
			break
		}
	}
	return lines, next, nil
}

func (q Query) takes(l Line) bool {
	return l.Action != "" && (q.Queue == "" || l.Queue == q.Queue) && (q.Action == "" || l.Action == q.Action) &&
		(q.Name == "" || l.Name == q.Name) && (q.ID == "" || slices.Contains(l.IDs, q.ID)) && !l.At.Before(q.Since)
}

// parse reads an entry of the stream; one that cannot be read has no action.
func parse(entry any) (line Line, cursor string) {
	parts := redisdb.List(entry)
	if len(parts) != 2 {
		return Line{}, ""
	}
	cursor = redisdb.Text(parts[0])
	fields := redisdb.Texts(parts[1])
	if len(fields) != 2 || json.Unmarshal([]byte(fields[1]), &line) != nil {
		line = Line{}
	}
	ms, _, _ := strings.Cut(cursor, "-")
	at, _ := strconv.ParseInt(ms, 10, 64)
	line.Cursor, line.At = cursor, time.UnixMilli(at).UTC()
	return line, cursor
}

// CheckCursor says what is wrong with a cursor that somebody gives.
func CheckCursor(cursor string) error {
	ms, n, two := strings.Cut(cursor, "-")
	of, err := strconv.ParseUint(ms, 10, 64)
	if err == nil && two {
		_, err = strconv.ParseUint(n, 10, 64)
	}
	if err != nil || of == math.MaxUint64 { // nothing comes after that

		return fmt.Errorf("%q is no cursor of a change, want one as 1767225600000-0, or 0", cursor)
	}
	return nil
}
