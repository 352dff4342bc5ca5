package dashboard

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// maxStreams bounds the streams of events of a node.
const maxStreams = 100

// livePage makes a page from a snapshot alone: no stream asks Redis for anything.
type livePage struct {
	pattern string               // of its path
	regions []string             // templates of the page that are kept live
	focus   string               // the queue it is about
	ticker  bool                 // it shows what happens
	enough  func(*snapshot) bool // what the page waits for a moment to have
	view    func(*snapshot, access) (view, error)
}

// livePages are those of the whole cluster; besides there is one for each queue.
func (d *Dashboard) livePages() []livePage {
	return []livePage{
		{pattern: "/{$}", regions: []string{"totals", "queues"}, enough: figured, view: d.overviewView},
		{pattern: "/shards", regions: []string{"map"}, enough: figured, view: d.shardsView},
		{pattern: "/watch", enough: recent, view: d.watchView, ticker: true},
		{pattern: "/nodes", regions: []string{"nodes"}, enough: recent, view: d.nodesView},
	}
}

// access is the page that is asked for, and whether the sender of the request may change something:
// a snapshot is shared by all.
type access struct {
	*url.URL
	mayChange bool
}

func accessOf(r *http.Request) access { return access{r.URL, auth.MayChange(r)} }

func liveURL(u *url.URL) string { return "/events" + query("of", u.RequestURI()) }

// liveOf finds the page whose stream is asked for.
func (d *Dashboard) liveOf(u *url.URL) (livePage, bool) {
	for _, p := range d.livePages() {
		if strings.TrimSuffix(p.pattern, "{$}") == u.Path {
			return p, true
		}
	}
	name, ok := strings.CutPrefix(u.Path, "/queues/")
	if !ok || queue.CheckName("queue", name) != nil {
		return livePage{}, false
	}
	return livePage{regions: []string{"figures", "shards"}, focus: name, view: d.queueView, ticker: true}, true
}

// events streams the live parts of a page: an event for every part that has changed, with
// the part's HTML as its data.
func (d *Dashboard) events(w http.ResponseWriter, r *http.Request) {
	u, err := url.ParseRequestURI(r.URL.Query().Get("of"))
	page, ok := livePage{}, false
	if err == nil && u.Host == "" {
		page, ok = d.liveOf(u)
	}
	if !ok {
		d.fail(w, r, web.NewProblem(http.StatusNotFound, "of: want the path of a page that is live, like of=/."))
		return
	}
	select {
	case d.streams <- struct{}{}:
		defer func() { <-d.streams }()
	default:
		w.Header().Set("Retry-After", "30")
		d.fail(w, r, web.NewProblem(http.StatusServiceUnavailable, "%d pages are live already: reload this one by hand.", maxStreams))
		return
	}
	d.stream(r, page, access{u, auth.MayChange(r)}, &eventWriter{web.NewEventStream(w), map[string]string{}})
}

// stream writes until the client goes, its session or the node ends, or the client no longer
// takes what it is sent.
func (d *Dashboard) stream(r *http.Request, page livePage, v access, out *eventWriter) {
	beat := time.NewTicker(web.StreamBeat)
	defer beat.Stop()
	var news <-chan events.Event
	if page.ticker {
		if backlog, leave, ok := d.hub.Join(page.focus); ok {
			defer leave()
			news = backlog.C()
		}
	}
	for happens := (&ticker{All: page.focus == ""}); !over(r); {
		now, change := d.sampler.look(page.focus)
		if !now.At.IsZero() && d.sendParts(page, now, v, out) != nil {
			return
		}
		if !d.await(r, change, beat.C, news, happens, out) {
			return
		}
	}
}

// over reports whether the session that allowed a request has ended. It is asked of the wall
// clock before each event: a timer would not notice that the host was suspended.
func over(r *http.Request) bool {
	end := auth.SessionEnd(r)
	return !end.IsZero() && !time.Now().Before(end)
}

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
		trouble = d.explain(now.Err)
	}
	return out.event("trouble", trouble)
}

// eventWriter writes server-sent events, and each part only when it has changed.
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
