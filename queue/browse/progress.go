package browse

import (
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// Progress is the last report of a handler about a job in flight.
type Progress struct {
	At    time.Time // by Redis's clock
	Share float64   // 0 to 1
	Log   string    // the last line
}

// progressOf parses a field of the key progress; see lua/note.lua. ok is false for an invalid
// field.
func progressOf(text string) (p Progress, ok bool) {
	head, line, ok1 := strings.Cut(text, "\n")
	at, share, ok2 := strings.Cut(head, " ")
	var err error
	if p.Share, err = strconv.ParseFloat(share, 64); err != nil || !ok1 || !ok2 {
		return Progress{}, false
	}
	p.At, p.Log = redisdb.Micros(at), line[strings.LastIndexByte(line, '\n')+1:]
	return p, true
}
