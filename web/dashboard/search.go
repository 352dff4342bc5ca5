package dashboard

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/web"
)

// Bounds of a search through all queues.
const (
	searchedQueues = 1000            // each queue costs a round trip
	searchFor      = 3 * time.Second // no queue is begun after half of it
	foundPerQueue  = 10              // jobs outside the morgue, and the same number in it
	foundRows      = 100
	foundNames     = 20 // names of queues
)

// searchBody is the page of a search through all queues. It has the jobs that were found, and the places that were searched.
type searchBody struct {
	Text   string
	Kind   string   // what was searched for, as in "the text acme"
	Names  []string // queues with the text in their names
	Rows   []foundRow
	Queues int // all
	Named  bool
	Wholes bool // whole ids were searched as well
	Jobs   int  // that were examined
	Whole  int  // queues that were searched to their end
	Parts  []searchedPart
	Left   []string // queues that are still to be searched
}

// Complete reports whether everything was searched.
func (b searchBody) Complete() bool { return len(b.Parts)+len(b.Left) == 0 }

// foundRow is a job that matches.
type foundRow struct {
	Queue string
	browse.Listed
	How, Preview string
}

// searchedPart is a list that was not searched to its end.
type searchedPart struct {
	Queue, Path string
	Through     float64
	Refused     string // why it was not searched
}

// searchPage searches all queues. The whole name of a queue, and the whole id of a job in a single queue, lead to their
// own pages.
func (d *Dashboard) searchPage(r *http.Request) (view, error) {
	values := r.URL.Query()
	name, id, text := values.Get("queue"), values.Get("id"), strings.TrimSpace(values.Get("q"))
	switch {
	case name != "" && id != "":
		return view{Redirect: jobLink(name, id)}, nil
	case id == "" && name != "":
		text = name
	case text == "":
		text = id
	}
	if text == "" {
		return view{}, web.NewProblem(http.StatusBadRequest, "Nothing is asked for. The address must be like ?q=17.")
	}
	b := searchBody{Text: text}
	search := searchOf(text)
	prefix, isPrefix := strings.CutSuffix(text, "*")
	isPrefix = isPrefix && prefix != "" && search.Tag == "" && search.Error == ""
	switch {
	case isPrefix:
		b.Kind, search = "ids that begin with "+showID(prefix), browse.Search{Contains: prefix}
	case search.Tag != "" || search.Error != "":
		b.Kind = "payloads with " + text
	default:
		b.Kind, b.Named, b.Wholes = "the text "+text, true, true
	}
	known := d.sampler.await(r.Context(), "", isRecent)
	from := values.Get("from") // a page that goes on
	b.Named, b.Wholes = b.Named && from == "", b.Wholes && from == ""
	if b.Wholes && known.queue(text) != nil {
		return view{Redirect: "/queues/" + url.PathEscape(text)}, nil
	}
	entries, err := d.client.Registry().Entries(r.Context())
	if err != nil {
		return view{}, err
	}
	if len(entries) > searchedQueues {
		return view{}, web.NewProblem(http.StatusBadRequest, "There are %d queues, and at most %d can be searched. Search on the page of the queue, below Jobs.", len(entries), searchedQueues)
	}
	names := slices.Sorted(maps.Keys(entries))
	names = slices.DeleteFunc(names, func(name string) bool { return name < from })
	b.Queues = len(names)
	if b.Wholes {
		if b.Rows, err = d.findID(r.Context(), names, text); err != nil {
			return view{}, err
		}
		if len(b.Rows) == 1 {
			return view{Redirect: jobLink(b.Rows[0].Queue, text)}, nil
		}
		for _, name := range names {
			if strings.Contains(strings.ToLower(name), strings.ToLower(text)) {
				b.Names = append(b.Names, name)
			}
		}
	}
	if err := d.searchQueues(r.Context(), &b, known, names, search, prefix, isPrefix); err != nil {
		return view{}, err
	}
	return view{Page: "search", Title: "Search: " + showID(text), Nav: "/", Find: text, Body: b}, nil
}

// MoreNames returns how many names are not shown.
func (b searchBody) MoreNames() int { return max(0, len(b.Names)-foundNames) }

// SomeNames returns the names that are shown.
func (b searchBody) SomeNames() []string { return b.Names[:min(len(b.Names), foundNames)] }

// findID returns the jobs with this id, one at most in a queue.
func (d *Dashboard) findID(ctx context.Context, names []string, id string) (found []foundRow, err error) {
	for _, name := range names {
		q, err := d.client.Queue(ctx, name)
		if err != nil {
			return nil, err
		}
		job, ok, err := browse.Of(q).Where(ctx, id)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, foundRow{Queue: name, Listed: job, How: "the id"})
		}
	}
	return found, nil
}

// isEmpty reports whether a queue had no jobs when its figures were read, a moment ago.
func isEmpty(f *figures) bool {
	return f != nil && time.Since(f.At) < 2*interval && f.Sum.Jobs.Total()+f.Sum.Morgue == 0
}

// searchQueues searches the jobs of each queue in turn, until it has found enough or the time is over.
func (d *Dashboard) searchQueues(ctx context.Context, b *searchBody, known *snapshot, names []string, search browse.Search, prefix string, isPrefix bool) error {
	began := time.Now()
	for i, name := range names {
		if time.Since(began) > searchFor/2 || len(b.Rows) >= foundRows {
			b.Left = names[i:]
			return nil
		}
		if isEmpty(known.queue(name)) {
			b.Whole++
			continue
		}
		q, err := d.client.Queue(ctx, name)
		if err != nil {
			return err
		}
		ended := true
		for _, path := range []string{"jobs", "morgue"} {
			query := browse.Query{Search: search, Range: browse.Range{Limit: foundPerQueue}}
			if isPrefix {
				query.MinID, query.MaxID = prefix, prefix+strings.Repeat("\xff", 8)
			}
			if path == "morgue" {
				query.State = browse.StateMorgue
			}
			page, err := browse.Of(q).Page(ctx, query)
			if errors.Is(err, browse.ErrQuery) {
				b.Parts, ended = append(b.Parts, searchedPart{Queue: name, Path: path, Refused: web.ProblemOf(err).Detail}), false
				break
			}
			if err != nil {
				return err
			}
			b.Jobs += page.Examined
			b.addRows(name, page.Jobs, search)
			if page.Next != "" {
				b.Parts, ended = append(b.Parts, searchedPart{Queue: name, Path: path, Through: min(page.Through, .99)}), false
			}
		}
		if ended {
			b.Whole++
		}
	}
	return nil
}

// addRows adds jobs that match, apart from those that are there already.
func (b *searchBody) addRows(queue string, jobs []browse.Listed, search browse.Search) {
	for _, job := range jobs {
		row := foundRow{queue, job, "a payload", previewOf(job)}
		switch {
		case search.Tag != "":
			row.How = "the tag"
		case search.Error != "":
			row.How, row.Preview = "the error", summaryLine(job.Error)
		case job.ID == search.Contains:
			row.How = "the id"
		case strings.HasPrefix(job.ID, search.Contains):
			row.How = "the beginning of the id"
		case strings.Contains(job.ID, search.Contains):
			row.How = "a part of the id"
		}
		known := func(r foundRow) bool { return r.Queue == queue && r.ID == job.ID && r.State == job.State }
		if !slices.ContainsFunc(b.Rows, known) {
			b.Rows = append(b.Rows, row)
		}
	}
}
