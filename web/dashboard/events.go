package dashboard

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// maxStreams bounds the streams of events of a node.
const maxStreams = 100

// livePage makes a page from a snapshot alone, so that no stream asks Redis for anything. A hundred open pages
// cost Redis little more than a single page.
type livePage struct {
	pattern string               // of its path
	regions []string             // templates of the page that are kept live
	focus   string               // the queue it is about
	ticker  bool                 // it shows events
	enough  func(*snapshot) bool // whether a snapshot is new enough; the page waits a moment for such a snapshot
	view    func(*snapshot, access) (view, error)
}

// livePages returns the live pages of the whole cluster, and the live page of queues.
func (d *Dashboard) livePages() []livePage {
	return []livePage{
		{pattern: "/{$}", regions: []string{"totals", "queues"}, enough: hasFigures, view: d.overviewView},
		{pattern: "/shards", regions: []string{"map"}, enough: hasFigures, view: d.shardsView},
		{pattern: "/watch", enough: isRecent, view: d.watchView, ticker: true},
		{pattern: "/nodes", regions: []string{"nodes"}, enough: isRecent, view: d.nodesView},
	}
}

// access is the requested page, and whether the sender of the request may change something. Everything
// else on a live page comes from the snapshot, which all requests share.
type access struct {
	*url.URL
	mayChange bool
}

func accessOf(r *http.Request) access { return access{r.URL, auth.MayChange(r)} }

// liveURL returns the address of the stream of a page. It has the page's whole address, because filter, order and
// page number decide which rows are sent.
func liveURL(u *url.URL) string { return "/events" + encodeQuery("of", u.RequestURI()) }

// liveOf finds the page of a stream. A stream exists only for the paths of live pages, and the path comes from the
// client.
func (d *Dashboard) liveOf(u *url.URL) (livePage, bool) {
	for _, p := range d.livePages() {
		if strings.TrimSuffix(p.pattern, "{$}") == u.Path {
			return p, true
		}
	}
	name, ok := strings.CutPrefix(u.Path, "/queues/")
	if !ok || protocol.CheckName("queue", name) != nil {
		return livePage{}, false
	}
	return livePage{regions: []string{"figures", "shards"}, focus: name, view: d.queueView, ticker: true}, true
}

// serveEvents streams the live parts of a page. It sends an event for every part that has changed, with the
// HTML of the part as its data. The same templates make the page and its parts, so a live page and a reloaded page
// look alike.
func (d *Dashboard) serveEvents(w http.ResponseWriter, r *http.Request) {
	u, err := url.ParseRequestURI(r.URL.Query().Get("of"))
	page, ok := livePage{}, false
	if err == nil && u.Host == "" {
		page, ok = d.liveOf(u)
	}
	if !ok {
		d.writeError(w, r, web.NewProblem(http.StatusNotFound, "of: it must be the path of a live page, like of=/."))
		return
	}
	select {
	case d.streams <- struct{}{}:
		defer func() { <-d.streams }()
	default:
		w.Header().Set("Retry-After", "30")
		d.writeError(w, r, web.NewProblem(http.StatusServiceUnavailable, "%d pages are live already. Reload this page by hand.", maxStreams))
		return
	}
	d.streamPage(r, page, access{u, auth.MayChange(r)}, &eventWriter{web.NewEventStream(w), map[string]string{}})
}

// streamPage writes until the client goes, until its session or the node ends, or until the client accepts no
// more bytes. It checks the session with each snapshot and each beat, because the guard has judged the request
// only at its beginning. If the hub has no stream left, the page is live without events.
func (d *Dashboard) streamPage(r *http.Request, page livePage, v access, out *eventWriter) {
	beat := time.NewTicker(web.StreamBeat)
	defer beat.Stop()
	var news <-chan events.Event
	if page.ticker {
		if backlog, leave, ok := d.hub.Join(page.focus); ok {
			defer leave()
			news = backlog.C()
		}
	}
	for happens := (&ticker{All: page.focus == ""}); !auth.SessionOver(r); {
		now, change := d.sampler.registerWatcher(page.focus)
		if !now.At.IsZero() && d.sendParts(page, now, v, out) != nil {
			return
		}
		if !d.awaitNews(r, change, beat.C, news, happens, out) {
			return
		}
	}
}

// sendParts sends the parts of a page that have changed. The part trouble says why figures cannot be read, so that
// a page does not show old figures as if they were new.
func (d *Dashboard) sendParts(page livePage, now *snapshot, by access, out *eventWriter) error {
	v, err := page.view(now, by)
	if err != nil {
		return err
	}
	for _, region := range page.regions {
		var part bytes.Buffer
		if err := d.pages[v.Page].ExecuteTemplate(&part, region, v.Body); err != nil {
			d.cfg.Log.Error("part of a page not made", "page", v.Page, "part", region, "err", err)
			return err
		}
		if err := out.event(region, part.String()); err != nil {
			return err
		}
	}
	trouble := ""
	if now.Err != nil {
		trouble = d.explainError(now.Err)
	}
	return out.event("trouble", trouble)
}

// eventWriter writes server-sent events. It sends a part only if the part has changed since it was sent last.
type eventWriter struct {
	*web.EventStream
	sent map[string]string
}

func (e *eventWriter) event(name, data string) error {
	if last, ok := e.sent[name]; ok && last == data {
		return nil
	}
	e.sent[name] = data
	return e.Event(name, data)
}
