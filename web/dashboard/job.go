package dashboard

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/clip"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// jobBody is the page of an id.
type jobBody struct {
	Queue     string
	ID        string
	Shard     int
	Found     bool
	Job       browse.Listed
	Reason    status.Why
	Payloads  []payloadLine
	Kept      *payloadText // the id's state; nil: none
	Hidden    int          // payloads that are not shown
	Bytes     int
	Runs      []runLine
	Older     bool // the journal may have more of them than are shown
	Changes   []changeLine
	Tracked   bool         // every run is kept
	Held      bool         // by a hold of the id itself
	MayCancel bool         // a handler may have it
	Thens     []queue.Then // what can become of it
	MayTrack  bool
	Actions   []action
	API       string
	Back      string
	Now       time.Time
}

type payloadLine struct {
	payloadText
	Score  float64
	Header []headerLine
}

// headerLine is a header of a payload.
type headerLine struct{ Name, Value string }

func headerLines(h lowkiq.Header) (lines []headerLine) {
	all := h.Map()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		lines = append(lines, headerLine{name, all[name]})
	}
	return lines
}

// Due is when the id becomes due, if it will.
func (b jobBody) Due() (d time.Duration, ok bool) {
	if b.Reason.Due == nil {
		return 0, false
	}
	return time.Duration(*b.Reason.Due * float64(time.Second)), true
}

// Forgotten is how many of its failures in a row the shard no longer remembers.
func (b jobBody) Forgotten() int {
	remembered := 0
	for _, r := range b.Runs {
		if r.Verdict == browse.RunFailed || r.Verdict == browse.RunExhausted {
			remembered++
		}
	}
	return max(0, failures(b.Job.RetryCount)-remembered)
}

// askedID is the id that a request names, as it is or by its key.
func askedID(values url.Values) (string, error) {
	if values.Has("key") {
		return idOf(values.Get("key"))
	}
	if values.Get("id") == "" {
		return "", web.NewProblem(http.StatusBadRequest, "No id is named: want ?id=17.")
	}
	return values.Get("id"), nil
}

func (d *Dashboard) jobPage(r *http.Request) (view, error) {
	q, err := d.queue(r)
	if err != nil {
		return view{}, err
	}
	id, err := askedID(r.URL.Query())
	if err != nil {
		return view{}, err
	}
	b := jobBody{Queue: q.Name, ID: id, Shard: q.Of(id).Index, Back: jobLink(q.Name, id)}
	if b.Job, b.Found, err = browse.Of(q).Job(r.Context(), id); err != nil {
		return view{}, err
	}
	if b.Reason, err = d.node.Cluster().Why(r.Context(), q, id); err != nil {
		return view{}, err
	}
	kept, err := browse.Of(q).Kept(r.Context(), id)
	if err != nil {
		return view{}, err
	}
	if kept != nil {
		text := textOf(kept)
		b.Kept = &text
	}
	runs, err := browse.Of(q).Runs(r.Context(), browse.RunQuery{ID: id})
	if err != nil {
		return view{}, err
	}
	b.Runs, b.Older = runLines(runs.List), !runs.Oldest.IsZero()
	if err := d.readChanges(r, &b); err != nil {
		return view{}, err
	}
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	b.MayCancel, b.Thens = auth.MayChange(r) && b.Found && b.Job.State == browse.StateInFlight, queue.Thens()
	b.fill(auth.MayChange(r))
	v := view{Page: "job", Title: showID(id) + " of " + q.Name, Nav: "/", Queue: q.Name, Again: b.Found, Body: b}
	if !b.Found && len(b.Runs) == 0 {
		v.Status = http.StatusNotFound
	}
	return v, nil
}

// readChanges reads what people did to the id, and whether it is tracked.
func (d *Dashboard) readChanges(r *http.Request, b *jobBody) error {
	lines, _, err := changes.In(d.client.DB()).Read(r.Context(), changes.Query{Queue: b.Queue, ID: b.ID, Look: 2000})
	if err != nil {
		return err
	}
	b.Changes = changeLines(lines)
	set, now, err := rules.In(d.client.DB()).Queue(r.Context(), b.Queue)
	if err != nil {
		return err
	}
	values, _ := set.Values(now) // what cannot be read is not in force, either
	b.Held = slices.ContainsFunc(values.Holds, func(h rules.Hold) bool { return h.ID == b.ID })
	b.Tracked, b.MayTrack = slices.Contains(values.Tracked, b.ID), auth.MayChange(r) && utf8.ValidString(b.ID)
	return nil
}

func (b *jobBody) fill(mayChange bool) {
	for i, p := range b.Job.Payloads {
		b.Bytes += len(p.Data)
		if i < shownPayloads {
			b.Payloads = append(b.Payloads, payloadLine{textOf(p.Data), p.Score, headerLines(p.Header)})
		}
	}
	b.Hidden = len(b.Job.Payloads) - len(b.Payloads)
	b.API = "/api/v1/queues/" + url.PathEscape(b.Queue) + "/jobs?id=" + url.QueryEscape(b.ID)
	if b.Found && mayChange {
		b.Actions = buttonsFor(b.Job.State)
	}
}

// searchPage goes to the page of an id, or of a queue if no id is named. Without a queue it looks into all of them.
func (d *Dashboard) searchPage(r *http.Request) (view, error) {
	name, id := r.URL.Query().Get("queue"), r.URL.Query().Get("id")
	if id == "" && name != "" {
		if s := d.sampler.await(r.Context(), "", recent); s.queue(name) == nil {
			return view{Redirect: "/" + query("q", name)}, nil // those with this in their name
		}
		return view{Redirect: "/queues/" + url.PathEscape(name)}, nil
	}
	if id == "" {
		return view{}, web.NewProblem(http.StatusBadRequest, "No id is named: want ?id=17.")
	}
	if name == "" {
		found, err := d.find(r.Context(), id)
		if err != nil {
			return view{}, err
		}
		if len(found) != 1 {
			v := view{Page: "found", Title: showID(id), Nav: "/", Body: foundBody{ID: id, Jobs: found}}
			if len(found) == 0 {
				v.Status = http.StatusNotFound
			}
			return v, nil
		}
		name = found[0].Queue
	}
	return view{Redirect: jobLink(name, id)}, nil
}

// foundBody is the page of an id that is in several queues, or in none.
type foundBody struct {
	ID   string
	Jobs []foundJob
}

type foundJob struct {
	Queue string
	State browse.State
}

// searchedQueues bounds the queues that a search without a queue looks into: each is a round trip.
const searchedQueues = 1000

// find looks for an id in every queue.
func (d *Dashboard) find(ctx context.Context, id string) (found []foundJob, err error) {
	entries, err := d.client.Registry().Entries(ctx)
	if err != nil {
		return nil, err
	}
	if len(entries) > searchedQueues {
		return nil, web.NewProblem(http.StatusBadRequest, "There are %d queues, at most %d are searched: name the queue of the id.", len(entries), searchedQueues)
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		q, err := d.client.Queue(ctx, name)
		if err != nil {
			return nil, err
		}
		job, ok, err := browse.Of(q).Job(ctx, id)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, foundJob{name, job.State})
		}
	}
	return found, nil
}

// Ids are bytes of any value. Forms cannot carry all of them (browsers rewrite line ends
// and what is not UTF-8), so forms and some links name an id by a key: its base64.

// keyOf is the key of an id.
func keyOf(id string) string { return base64.RawURLEncoding.EncodeToString([]byte(id)) }

func idOf(key string) (string, error) {
	id, err := base64.RawURLEncoding.DecodeString(key)
	if err != nil || len(id) == 0 || len(id) > lowkiq.MaxIDBytes {
		return "", web.NewProblem(http.StatusBadRequest, "%.40q names no id: want its base64 (URL alphabet, without padding).", key)
	}
	return string(id), nil
}

// plain reports whether an id can be shown and typed as it is.
func plain(id string) bool {
	return utf8.ValidString(id) && strings.TrimSpace(id) == id && strings.IndexFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// showID is an id as people may read it.
func showID(id string) string {
	if plain(id) {
		return id
	}
	return strconv.Quote(id)
}

// jobLink is where an id's page is.
func jobLink(queue, id string) string {
	if plain(id) {
		return "/queues/" + url.PathEscape(queue) + "/job?id=" + url.QueryEscape(id)
	}
	return "/queues/" + url.PathEscape(queue) + "/job?key=" + keyOf(id)
}

// How much of payloads a page shows.
const (
	shownPayloads     = 50
	shownPayloadBytes = 8 << 10
)

// payloadText is a payload as people may read it.
type payloadText struct {
	Text string
	Form string // JSON, text, base64 or empty
	Size int
	Cut  bool
}

// textOf shows a payload: JSON with line breaks, bytes that are no text as base64, and
// only the beginning of what is long.
func textOf(data []byte) payloadText {
	p := payloadText{Size: len(data), Form: "text"}
	switch {
	case len(data) == 0:
		p.Form = "empty"
		return p
	case !isText(data):
		p.Form, p.Cut = "base64", len(data) > shownPayloadBytes
		p.Text = base64.StdEncoding.EncodeToString(data[:min(len(data), shownPayloadBytes)])
		return p
	}
	whole := string(data)
	var pretty bytes.Buffer
	if len(data) <= 1<<20 && json.Indent(&pretty, data, "", "  ") == nil {
		p.Form, whole = "JSON", pretty.String()
	}
	p.Text = clip.Text(whole, shownPayloadBytes)
	p.Cut = len(p.Text) < len(whole)
	return p
}

// isText reports whether data can be read as it is.
func isText(data []byte) bool {
	return utf8.Valid(data) && bytes.IndexFunc(data, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r'
	}) < 0
}

// beginning is the start of a payload in one line.
func beginning(data []byte, n int) string {
	if len(data) == 0 {
		return "empty"
	}
	head := data[:min(len(data), n+utf8.UTFMax)]
	for len(head) > 0 && len(head) < len(data) && !utf8.Valid(head) && len(head) > n {
		head = head[:len(head)-1]
	}
	if !isText(head) {
		return clip.Text("base64 "+base64.StdEncoding.EncodeToString(head), n) + "…"
	}
	line := clip.Text(strings.Join(strings.Fields(string(head)), " "), n)
	if len(line) < len(data) && len(data) > n {
		line += "…"
	}
	return line
}
