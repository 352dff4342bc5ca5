package web

import (
	"cmp"
	"encoding/base64"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue"
)

// order is what a list is sorted by, and what from and to limit.
type order string

const (
	byID      order = "id"
	byDue     order = "due" // also: when a job was buried
	byRetries order = "retries"
	byTime    order = "time"
)

// Limits of a list.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// listing is what a request asks to be listed.
type listing struct {
	queue.Range
	state queue.State // "" = any
	by    order
}

// kind says which listings a route has.
type kind struct {
	states []queue.State // that the parameter state may name; the first is the default
	orders []order       // that the parameter by may name; the first is the default
}

var (
	jobsKind     = kind{[]queue.State{"", queue.Ready, queue.Scheduled, queue.Retrying, queue.InFlight, queue.Waiting}, []order{byDue, byID, byRetries}}
	inFlightKind = kind{[]queue.State{queue.InFlight}, []order{byID}}
	morgueKind   = kind{[]queue.State{queue.Dead}, []order{byTime, byID}}
)

var (
	jobsQuery  = []string{"state", "by", "from", "to", "reverse", "limit", "id", "id_base64"}
	rangeQuery = []string{"by", "from", "to", "reverse", "limit"}
)

// parseListing reads a query whose parameters' names have been checked.
func parseListing(values url.Values, k kind) (listing, error) {
	l := listing{by: order(values.Get("by")), state: queue.State(values.Get("state"))}
	if l.state == "" {
		l.state = k.states[0]
	}
	if l.by == "" {
		l.by = k.orders[0]
	}
	if !slices.Contains(k.states, l.state) {
		return l, badField("state", "got %q, want one of %s", l.state, words(k.states))
	}
	if !slices.Contains(k.orders, l.by) {
		return l, badField("by", "got %q, want one of %s", l.by, words(k.orders))
	}
	if l.by == byRetries && (l.state == queue.Ready || l.state == queue.Scheduled || l.state == queue.InFlight) {
		return l, badField("by", "retries sorts failed jobs: want state=retry or state=blocked, not state=%s", l.state)
	}
	if l.by == byRetries && l.state == "" {
		l.state = queue.Retrying
	}
	for _, read := range []func(url.Values) error{l.readLimit, l.readReverse, l.readRange} {
		if err := read(values); err != nil {
			return l, err
		}
	}
	return l, nil
}

func words[T ~string](all []T) string {
	var text []string
	for _, one := range all {
		if one != "" {
			text = append(text, string(one))
		}
	}
	return strings.Join(text, ", ")
}

func (l *listing) readLimit(values url.Values) error {
	l.Limit = defaultLimit
	if !values.Has("limit") {
		return nil
	}
	n, err := strconv.Atoi(values.Get("limit"))
	if err != nil || n < 1 || n > maxLimit {
		return badField("limit", "got %q, want a number from 1 to %d", values.Get("limit"), maxLimit)
	}
	l.Limit = n
	return nil
}

func (l *listing) readReverse(values url.Values) error {
	text := values.Get("reverse")
	if !values.Has("reverse") {
		return nil
	}
	reverse, err := strconv.ParseBool(cmp.Or(text, "true"))
	if err != nil {
		return badField("reverse", "got %q, want true or false", text)
	}
	l.Reverse = reverse
	return nil
}

// readRange reads from and to in the unit of the order.
func (l *listing) readRange(values url.Values) (err error) {
	from, to := values.Get("from"), values.Get("to")
	switch l.by {
	case byID:
		l.MinID, l.MaxID = from, to
	case byRetries:
		l.MinRetry, l.MaxRetry = -1, math.MaxInt32
		err = cmp.Or(readInt("from", from, &l.MinRetry), readInt("to", to, &l.MaxRetry))
		if l.MinRetry == 0 { // 0 to 0 would be no limit; a failed job has at least 0
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
		return badField(field, "got %q, want a retry count", text)
	}
	*into = n
	return nil
}

// maxUnix is the last second of the year 9999.
const maxUnix = 253402300799

func readTime(field, text string, into *time.Time) error {
	if text == "" {
		return nil
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds >= 0 && seconds <= maxUnix {
		*into = time.UnixMicro(int64(math.Round(seconds * 1e6)))
		return nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return badField(field, "got %q, want unix seconds or a time like 2026-01-02T15:04:05Z", text)
	}
	*into = at
	return nil
}

// askedID returns the id that a query of jobs asks for, if it asks for one.
func askedID(values url.Values) (id string, ok bool, err error) {
	if !values.Has("id") && !values.Has("id_base64") {
		return "", false, nil
	}
	if len(values) > 1 {
		return "", false, badField("id", "asks for one job: no other parameter goes with it")
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

func noJob(q *queue.Queue, id string) error {
	return newProblem(http.StatusNotFound, "queue %q has no job %q: it is done, or was never pushed", q.Name, id)
}
