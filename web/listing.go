package web

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
)

// Limits of a list.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// Lists says which lists of jobs a route or a page has.
type Lists struct {
	States   []browse.State // that the parameter state may name; the first is the default
	Orders   []browse.Order // that the parameter by may name; the first is the default
	Limit    int            // the default; 0 if the jobs are not shown in pages
	MaxLimit int
}

// ordersOf returns the orders of a list of jobs of a state.
func ordersOf(state browse.State) []browse.Order {
	if state == browse.StateBlocked || state == browse.StateMorgue {
		return []browse.Order{browse.ByTime, browse.ByID, browse.ByRetries}
	}
	return []browse.Order{browse.ByDue, browse.ByID, browse.ByRetries}
}

var (
	jobLists = Lists{[]browse.State{"", browse.StateReady, browse.StateScheduled, browse.StateRetry, browse.StateFailed, browse.StateHeld,
		browse.StateInFlight, browse.StateBlocked}, ordersOf(""), defaultLimit, maxLimit}
	flightLists = Lists{[]browse.State{browse.StateInFlight}, []browse.Order{browse.ByID, browse.ByDue}, defaultLimit, maxLimit}
	morgueLists = Lists{[]browse.State{browse.StateMorgue}, ordersOf(browse.StateMorgue), defaultLimit, maxLimit}
)

// Query reads the parameters of a list. They choose the jobs, their order, a range in the unit of that order,
// and a page. Query ignores parameters of other names.
func (l Lists) Query(values url.Values) (browse.Query, error) {
	q := browse.Query{Kind: values.Get("kind"), Cursor: values.Get("cursor"),
		State: browse.State(cmp.Or(values.Get("state"), string(l.States[0]))), By: browse.Order(cmp.Or(values.Get("by"), string(l.Orders[0])))}
	q.Search = browse.Search{Contains: values.Get("contains"), Tag: values.Get("tag"), Error: values.Get("error")}
	if q.Search != (browse.Search{}) && q.State == "" && !values.Has("by") {
		q.By = browse.ByID // all jobs, as they are stored
	}
	q.Limit = l.Limit
	switch {
	case !slices.Contains(l.States, q.State):
		return q, badField("state", "got %q, must be one of %s", q.State, joinWords(l.States))
	case !slices.Contains(l.Orders, q.By):
		return q, badField("by", "got %q, must be one of %s", q.By, joinWords(l.Orders))
	case l.Limit > 0 && q.By == browse.ByRetries && (q.State == browse.StateReady || q.State == browse.StateScheduled || q.State == browse.StateInFlight):
		return q, badField("by", "retries sorts failed jobs; state must be retry, failed or blocked, not %s", q.State)
	case q.By == browse.ByRetries && q.State == "":
		q.State = browse.StateRetry
	}
	return q, cmp.Or(readRange(values, &q), readLimit(values, l.MaxLimit, &q.Limit), readReverse(values, &q))
}

func joinWords[T ~string](all []T) string { return strings.Join(wordsOf(all), ", ") }

// wordsOf returns the words that are not empty.
func wordsOf[T ~string](all []T) (words []string) {
	for _, one := range all {
		if one != "" {
			words = append(words, string(one))
		}
	}
	return words
}

func readLimit(values url.Values, maximum int, into *int) error {
	if !values.Has("limit") {
		return nil
	}
	n, err := strconv.Atoi(values.Get("limit"))
	if err != nil || n < 1 || n > maximum {
		return badField("limit", "got %q, must be a number from 1 to %d", values.Get("limit"), maximum)
	}
	*into = n
	return nil
}

func readReverse(values url.Values, l *browse.Query) error {
	text := values.Get("reverse")
	if !values.Has("reverse") {
		return nil
	}
	reverse, err := strconv.ParseBool(cmp.Or(text, "true"))
	if err != nil {
		return badField("reverse", "got %q, must be true or false", text)
	}
	l.Reverse = reverse
	return nil
}

// readRange reads from and to in the unit of the order. A text that is no value of that unit is refused, because
// a range that is left out would select all jobs.
func readRange(values url.Values, l *browse.Query) (err error) {
	from, to := values.Get("from"), values.Get("to")
	switch l.By {
	case browse.ByID:
		l.MinID, l.MaxID = from, to
	case browse.ByRetries:
		l.MinRetry, l.MaxRetry = -1, math.MaxInt32
		err = cmp.Or(readInt("from", from, &l.MinRetry), readInt("to", to, &l.MaxRetry))
		if l.MinRetry == 0 && l.MaxRetry == 0 { // a zero range would be no limit
			l.MinRetry = -1
		}
	default:
		err = cmp.Or(readTime("from", from, &l.MinTime), readTime("to", to, &l.MaxTime))
	}
	return err
}

func readInt(field, text string, into *int) error {
	if text == "" {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < -1 || n > math.MaxInt32 {
		return badField(field, "got %q, must be a retry count", text)
	}
	*into = n
	return nil
}

// maxUnix is the last second of the year 9999.
const maxUnix = 253402300799

// ParseTime reads unix seconds, or a time, of UTC if it names no zone.
func ParseTime(text string) (time.Time, error) {
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds >= 0 && seconds <= maxUnix {
		return time.UnixMicro(int64(math.Round(seconds * 1e6))), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("got %.40q, must be unix seconds or a time like 2026-01-02T15:04:05Z", text)
}

func readTime(field, text string, into *time.Time) (err error) {
	if text == "" {
		return nil
	}
	if *into, err = ParseTime(text); err != nil {
		return badField(field, "%v", err)
	}
	return nil
}

// askedID returns the id that a query of jobs names, and whether it names an id.
func askedID(values url.Values) (id string, ok bool, err error) {
	if !values.Has("id") && !values.Has("id_base64") {
		return "", false, nil
	}
	if len(values) > 1 {
		return "", false, badField("id", "it asks for a single job, so no other parameter goes with it")
	}
	if values.Has("id") {
		return values.Get("id"), true, nil
	}
	raw, err := base64.StdEncoding.DecodeString(values.Get("id_base64"))
	if err != nil {
		return "", false, badField("id_base64", "not base64 (in a URL, write + as %%2B): %v", err)
	}
	return string(raw), true, nil
}
