package dashboard

import (
	"bytes"
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
	"github.com/lowkiq/lowkiq/internal/text/truncate"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/status"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
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
	Kept      *payloadText // the id's state, nil if it has none
	Hidden    int          // payloads that are not shown
	Runs      []runLine
	Older     bool // the journal may have older runs
	Changes   []changeLine
	Tracked   bool            // every run is kept
	Held      bool            // by a hold of the id itself
	MayCancel bool            // a handler may have it
	Thens     []protocol.Then // possible ends of a cancelled run
	MayTrack  bool
	Actions   []*actions.Action
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

// Due returns the time until the id becomes due, and whether it will.
func (b jobBody) Due() (d time.Duration, ok bool) {
	if b.Reason.Due == nil {
		return 0, false
	}
	return time.Duration(*b.Reason.Due * float64(time.Second)), true
}

// Forgotten returns the number of failures in a row without a line in the journal.
func (b jobBody) Forgotten() int {
	remembered := 0
	for _, r := range b.Runs {
		if r.Verdict == browse.RunFailed || r.Verdict == browse.RunExhausted {
			remembered++
		}
	}
	return max(0, countFailures(b.Job.RetryCount)-remembered)
}

// askedID returns the id that a request names, by itself or by its key.
func askedID(values url.Values) (string, error) {
	if values.Has("key") {
		return idOf(values.Get("key"))
	}
	if values.Get("id") == "" {
		return "", web.NewProblem(http.StatusBadRequest, "No id is named. The address must be like ?id=17.")
	}
	return values.Get("id"), nil
}

// jobPage shows an id. An id without a job has a page as well, with the runs that the journal still has, because
// people ask what became of a job that is done.
func (d *Dashboard) jobPage(r *http.Request) (view, error) {
	q, err := d.queueOfPath(r)
	if err != nil {
		return view{}, err
	}
	id, err := askedID(r.URL.Query())
	if err != nil {
		return view{}, err
	}
	b := jobBody{Queue: q.Name, ID: id, Shard: q.Of(id).Index, Back: jobLink(q.Name, id)}
	if b.Job, b.Found, err = browse.Of(q).Beginning(r.Context(), id); err != nil {
		return view{}, err
	}
	if b.Reason, err = d.cfg.Cluster.Why(r.Context(), q, id); err != nil {
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
	b.MayCancel, b.Thens = auth.MayChange(r) && b.Found && b.Job.State == browse.StateInFlight, protocol.Thens()
	b.fillPayloads(auth.MayChange(r))
	v := view{Page: "job", Title: showID(id) + " of " + q.Name, Nav: "/", Queue: q.Name, Again: b.Found, Body: b}
	if !b.Found && len(b.Runs) == 0 {
		v.Status = http.StatusNotFound
	}
	return v, nil
}

// readChanges reads the changes that name the id, and whether it is tracked or held.
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
	values, _ := set.Apply(rules.Rules{}, now) // unreadable rules are not in force
	b.Held = slices.ContainsFunc(values.Holds, func(h rules.Hold) bool { return h.ID == b.ID })
	b.Tracked, b.MayTrack = slices.Contains(values.Tracked, b.ID), auth.MayChange(r) && utf8.ValidString(b.ID)
	return nil
}

// fillPayloads fills in the first payloads and the buttons. Payloads are data of users. The templates escape them,
// and the content security policy lets a page run only the node's own script file.
func (b *jobBody) fillPayloads(mayChange bool) {
	for _, p := range b.Job.Payloads[:min(len(b.Job.Payloads), browse.BeginningPayloads)] {
		b.Payloads = append(b.Payloads, payloadLine{textOf(p.Data), p.Score, headerLines(p.Header)})
	}
	b.Hidden = b.Job.Count - len(b.Payloads)
	b.API = "/api/v1/queues/" + url.PathEscape(b.Queue) + "/jobs?id=" + url.QueryEscape(b.ID)
	if b.Found && mayChange {
		b.Actions = buttonsFor(b.Job.State)
	}
}

// Ids are bytes of any value. Forms cannot carry all of them, because browsers rewrite line ends and
// bytes that are not UTF-8. So forms and some links name an id by a key, its base64.

// keyOf returns the key of an id.
func keyOf(id string) string { return base64.RawURLEncoding.EncodeToString([]byte(id)) }

// idOf returns the id of a key. It refuses keys that no id has, because a form may come from anywhere.
func idOf(key string) (string, error) {
	id, err := base64.RawURLEncoding.DecodeString(key)
	if err != nil || len(id) == 0 || len(id) > lowkiq.MaxIDBytes {
		return "", web.NewProblem(http.StatusBadRequest, "%.40q names no id. It must be the base64 of an id (URL alphabet, without padding).", key)
	}
	return string(id), nil
}

// isPlainID reports whether an id can be shown and typed as it is.
func isPlainID(id string) bool {
	return utf8.ValidString(id) && strings.TrimSpace(id) == id && strings.IndexFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// showID returns an id as people can read it.
func showID(id string) string {
	if isPlainID(id) {
		return id
	}
	return strconv.Quote(id)
}

// jobLink returns the path of the page of an id.
func jobLink(queue, id string) string {
	if isPlainID(id) {
		return "/queues/" + url.PathEscape(queue) + "/job?id=" + url.QueryEscape(id)
	}
	return "/queues/" + url.PathEscape(queue) + "/job?key=" + keyOf(id)
}

// shownPayloadBytes bounds the bytes of a payload on a page.
const shownPayloadBytes = 8 << 10

// payloadText is a payload as people can read it.
type payloadText struct {
	Text string
	Form string // JSON, text, base64 or empty
	Size int
	Cut  bool
}

// textOf shows a payload. JSON gets line breaks, bytes that are no text become base64, and of a long
// payload only the beginning is shown.
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
	text := data
	if len(data) <= 1<<20 && json.Valid(data) {
		p.Form, text = "JSON", indentJSON(data, 2*shownPayloadBytes)
	}
	p.Text = truncate.Text(string(text[:min(len(text), 2*shownPayloadBytes)]), shownPayloadBytes)
	p.Cut = len(p.Text) < len(text)
	return p
}

// indentJSON returns about the first most bytes of JSON with line breaks. The whole text with line breaks may be many times as long
// as the JSON.
func indentJSON(text []byte, most int) []byte {
	out := make([]byte, 0, most)
	depth := 0
	quoted, escaped, opened := false, false, false
	line := func() {
		out = append(out, '\n')
		for range min(depth, most) {
			out = append(out, "  "...)
		}
	}
	for _, c := range text {
		if len(out) >= most {
			break
		}
		if quoted {
			out = append(out, c)
			quoted, escaped = escaped || c != '"', c == '\\' && !escaped
			continue
		}
		closes := c == ']' || c == '}'
		if closes {
			depth--
		}
		if opened && c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			if opened = false; !closes {
				line()
			}
		} else if closes {
			line()
		}
		switch c {
		case ' ', '\t', '\r', '\n':
		case '{', '[':
			depth++
			opened = true
			out = append(out, c)
		case ',':
			out = append(out, c)
			line()
		case ':':
			out = append(out, ": "...)
		default:
			quoted = c == '"'
			out = append(out, c)
		}
	}
	return out
}

// isText reports whether data can be read as it is.
func isText(data []byte) bool {
	return utf8.Valid(data) && bytes.IndexFunc(data, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r'
	}) < 0
}

// summarizePayload returns the beginning of a payload in a single line.
func summarizePayload(data []byte, n int) string {
	if len(data) == 0 {
		return "empty"
	}
	head := data[:min(len(data), n+utf8.UTFMax)]
	for len(head) > 0 && len(head) < len(data) && !utf8.Valid(head) && len(head) > n {
		head = head[:len(head)-1]
	}
	if !isText(head) {
		return truncate.Text("base64 "+base64.StdEncoding.EncodeToString(head), n) + "…"
	}
	line := truncate.Text(strings.Join(strings.Fields(string(head)), " "), n)
	if len(line) < len(data) && len(data) > n {
		line += "…"
	}
	return line
}
