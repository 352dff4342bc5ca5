// Package changes records who has changed what of a cluster, when and from where.
//
// Each change is a [Line] of a stream of the cluster: changes that people and programs request by
// the API, the pages or the command line, and changes of the cluster itself (who leads, which nodes
// joined and left, how many shards moved). The last 10,000 or so are kept. The line of a change of
// rules is written in one script with the change. All other lines are written right after the
// change. A process that dies in between leaves no line.
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

	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Who is who requested a change.
type Who struct {
	Role string `json:"role,omitempty"` // role of the token: admin, push or read; anyone if no token is needed; cluster for the cluster itself; "" for a program with Redis's address
	// Name is the name in the client's certificate, or, if Claimed, the name that the client gives
	// itself.
	Name    string `json:"name,omitempty"`
	Claimed bool   `json:"claimed,omitempty"`
	Address string `json:"address,omitempty"` // host:port, as the node saw it
	Node    string `json:"node,omitempty"`    // node that got the request
}

// String returns the client for people. Parts that are not plain are quoted.
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

// Line describes a change.
type Line struct {
	Cursor string    `json:"cursor"` // place of the line in the stream
	At     time.Time `json:"at"`     // by Redis's clock
	Who
	Action string          `json:"action"`           // for example pause, rules or requeue
	Queue  string          `json:"queue,omitempty"`  // queue of the change
	Target string          `json:"target,omitempty"` // the node, or the name of a recurring entry
	IDs    []string        `json:"ids,omitempty"`    // ids of jobs, the first hundred of the named ids
	Count  int             `json:"count,omitempty"`  // number of jobs changed
	Old    json.RawMessage `json:"old,omitempty"`    // the value before
	New    json.RawMessage `json:"new,omitempty"`    // the value after; null if there is none
	Why    string          `json:"why,omitempty"`    // reason given with the request
}

const (
	// Kept is the minimum number of lines that are kept.
	Kept = 10_000
	// maxText bounds each text of a line, bytes.
	maxText = 1024
	// maxValue bounds old and new, in bytes. A longer value is left out.
	maxValue = 8 << 10
	// maxIDs bounds ids, and their bytes.
	maxIDs, maxIDBytes = 100, 16 << 10
)

// Encode returns the line as Redis keeps it. It shortens long texts.
func (l Line) Encode() ([]byte, error) {
	for _, text := range []*string{&l.Name, &l.Address, &l.Node, &l.Target, &l.Why} {
		*text = cutText(*text)
	}
	for _, value := range []*json.RawMessage{&l.Old, &l.New} {
		if len(*value) > maxValue {
			*value = json.RawMessage(fmt.Sprintf(`"%d bytes"`, len(*value)))
		}
	}
	l.IDs = fitIDs(l.IDs)
	return json.Marshal(struct {
		Line
		Cursor *struct{} `json:"cursor,omitempty"` // Redis sets it
		At     *struct{} `json:"at,omitempty"`     // and the time
	}{Line: l})
}

// fitIDs returns as many ids as a line may have. It leaves out ids that are not UTF-8.
func fitIDs(ids []string) (few []string) {
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

func cutText(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-len("…")], "") + "…"
}

// Log is the stream of a cluster's changes. It is safe for concurrent use.
type Log struct{ db *redisdb.DB }

// In returns the log of the cluster that db is for.
func In(db *redisdb.DB) Log { return Log{db} }

// Add appends a line. Redis sets its cursor and time.
func (l Log) Add(ctx context.Context, line Line) error {
	data, err := line.Encode()
	if err != nil {
		return fmt.Errorf("line of a change: %w", err)
	}
	_, err = l.db.Do(ctx, "record a change", "XADD", l.db.Keys.Changes(), "MAXLEN", "~", Kept, "*", "line", data)
	return err
}

// Origin is who makes changes.
type Origin string

// The origins of changes.
const (
	People  Origin = "people" // and programs
	Cluster Origin = "cluster"
)

// clusterRole is the role of changes by the cluster itself.
const clusterRole = "cluster"

// Itself returns the client of changes that the cluster makes itself. The node is the leader.
func Itself(node string) Who { return Who{Role: clusterRole, Node: node} }

// Query selects lines. Without After, the newest lines come first. With After, the lines after that
// cursor come, oldest first. The zero value of a field selects all.
type Query struct {
	Queue, Action, Name, ID string
	By                      Origin
	Since                   time.Time
	After                   string // cursor of a line; "0" means from the beginning
	Limit                   int    // default 100
	Look                    int    // maximum number of lines to read. Default: all
}

// Bounds of a read.
const (
	readChunk = 25
	maxRead   = 2 * Kept
	// bytesOfLine is the memory of the longest line, as it is received and parsed.
	bytesOfLine = 2 * (2*maxValue + maxIDBytes + 5*maxText + 1024)
)

// Read returns lines. next is the cursor of the last line that it read, to be used as the next
// After.
func (l Log) Read(ctx context.Context, q Query) (lines []Line, next string, err error) {
	if q.Limit <= 0 {
		q.Limit = 100
	}
	if q.Look <= 0 {
		q.Look = maxRead
	}
	from, next := "+", q.After
	if q.After != "" {
		from = "(" + q.After
	}
	for looked := 0; looked < q.Look && len(lines) < q.Limit; {
		cmd := []any{"XREVRANGE", l.db.Keys.Changes(), from, "-", "COUNT", readChunk}
		if q.After != "" {
			cmd = []any{"XRANGE", l.db.Keys.Changes(), from, "+", "COUNT", readChunk}
		}
		if err := memory.Take(ctx, readChunk*bytesOfLine); err != nil {
			return nil, "", err
		}
		reply, err := l.db.Do(ctx, "read the changes", cmd...)
		if err != nil {
			return nil, "", err
		}
		kept := int64(0)
		entries := redisdb.List(reply)
		for _, entry := range entries {
			line, cursor := parseEntry(entry)
			if q.After == "" && !q.Since.IsZero() && line.At.Before(q.Since) {
				return lines, next, nil
			}
			from, next = "("+cursor, cursor
			looked++
			if q.wantsLine(line) {
				kept += line.memorySize()
				if lines = append(lines, line); len(lines) == q.Limit {
					break
				}
			}
		}
		memory.Give(ctx, readChunk*bytesOfLine-kept)
		if len(entries) < readChunk {
			break
		}
	}
	return lines, next, nil
}

// memorySize returns the memory of the line while it is parsed and answered.
func (l *Line) memorySize() (n int64) {
	for _, id := range l.IDs {
		n += int64(len(id)) + 32
	}
	return 1024 + 3*(n+int64(len(l.Name)+len(l.Address)+len(l.Node)+len(l.Target)+len(l.Why)+len(l.Old)+len(l.New)))
}

func (q Query) wantsLine(l Line) bool {
	return l.Action != "" && (q.Queue == "" || l.Queue == q.Queue) && (q.Action == "" || l.Action == q.Action) &&
		(q.Name == "" || l.Name == q.Name) && (q.By == "" || (q.By == Cluster) == (l.Role == clusterRole)) && (q.ID == "" || slices.Contains(l.IDs, q.ID)) && !l.At.Before(q.Since)
}

// parseEntry parses an entry of the stream. An unreadable entry has no action.
func parseEntry(entry any) (line Line, cursor string) {
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

// CheckCursor returns an error if a cursor is invalid.
func CheckCursor(cursor string) error {
	ms, n, two := strings.Cut(cursor, "-")
	of, err := strconv.ParseUint(ms, 10, 64)
	if err == nil && two {
		_, err = strconv.ParseUint(n, 10, 64)
	}
	if err != nil || of == math.MaxUint64 { // no line can follow it

		return fmt.Errorf("%q is not the cursor of a change, such as 1767225600000-0 or 0", cursor)
	}
	return nil
}
