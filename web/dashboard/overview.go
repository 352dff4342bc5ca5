package dashboard

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/web"
)

// rowsPerPage is the number of queues on a page.
const rowsPerPage = 50

// overviewBody is the page at /.
type overviewBody struct {
	Cluster clusterLine
	Totals  totals
	Slowest *figures // the queue with the largest lag, nil if no queue lags
	Chart   chart
	Rows    []*figures
	Filter  string
	Sort    string
	Sorts   []sortLink
	Pager   pager
	Now     time.Time // of the snapshot; zero if nothing has been read yet
}

// clusterLine has the figures of the cluster in a line.
type clusterLine struct {
	Nodes, Draining, Gone int
	Leader                string
	Generation            uint64
}

// sortLink is the link that sorts queues by a column.
type sortLink struct {
	Title, URL string
	On         bool
}

// sorting orders queues. Queues with equal figures are in the order of their names.
type sorting struct {
	key, title string
	order      func(x, y *figures) int
}

func listSortings() []sorting {
	largest := func(of func(*figures) int64) func(x, y *figures) int {
		return func(x, y *figures) int { return cmp.Compare(of(y), of(x)) }
	}
	return []sorting{
		{"name", "name", func(x, y *figures) int { return 0 }},
		{"lag", "lag", largest(func(f *figures) int64 { return int64(f.Sum.Lag) })},
		{"waiting", "waiting", largest(func(f *figures) int64 { return int64(f.Sum.Jobs.Total() - f.Sum.Jobs.InFlight) })},
		{"failed", "failed", largest(func(f *figures) int64 { return int64(f.Sum.Jobs.Failed + f.Sum.Jobs.Blocked) })},
		{"held", "held", largest(func(f *figures) int64 { return int64(f.Sum.Jobs.Held) })},
		{"morgue", "morgue", largest(func(f *figures) int64 { return int64(f.Sum.Morgue) })},
		{"busy", "processed/s", func(x, y *figures) int { return cmp.Compare(y.Rate.Processed, x.Rate.Processed) }},
	}
}

// overviewView makes the page at / from a snapshot. Filter, order and page number come from the address, so a stream
// sends the rows that the page shows.
func (d *Dashboard) overviewView(s *snapshot, v access) (view, error) {
	values := v.Query()
	b := overviewBody{
		Cluster: clusterOf(s), Totals: s.sumTotals(), Slowest: s.slowest(), Chart: chartOf(s.Samples, s.At), Now: s.At,
		Filter: values.Get("q"), Sort: cmp.Or(values.Get("sort"), "name"),
	}
	rows, ok := sortedQueues(s.Queues, b.Filter, b.Sort)
	if !ok {
		return view{}, web.NewProblem(http.StatusBadRequest, "Queues are not sorted by %.40q.", b.Sort)
	}
	for _, one := range listSortings() {
		b.Sorts = append(b.Sorts, sortLink{one.title, "/" + encodeQuery("q", b.Filter, "sort", one.key), one.key == b.Sort})
	}
	b.Pager = pagerOf(v.URL, values.Get("page"), len(rows), rowsPerPage)
	b.Rows = rows[b.Pager.From:b.Pager.To]
	return view{Page: "overview", Title: "Overview", Nav: "/", Live: liveURL(v.URL), Body: b}, nil
}

// sortedQueues returns the queues whose names contain a text, in an order. It returns false for an unknown order.
func sortedQueues(all []*figures, filter, by string) ([]*figures, bool) {
	i := slices.IndexFunc(listSortings(), func(s sorting) bool { return s.key == by })
	if i < 0 {
		return nil, false
	}
	var rows []*figures
	for _, f := range all {
		if strings.Contains(strings.ToLower(f.Name), strings.ToLower(filter)) {
			rows = append(rows, f)
		}
	}
	slices.SortStableFunc(rows, listSortings()[i].order)
	return rows, true
}

func clusterOf(s *snapshot) clusterLine {
	line := clusterLine{Leader: s.Status.Leader, Generation: s.Status.Generation.Index}
	for _, n := range s.Status.Nodes {
		switch n.State {
		case "live":
			line.Nodes++
		case "draining":
			line.Draining++
		default:
			line.Gone++
		}
	}
	return line
}

// pager cuts a long table into pages.
type pager struct {
	Page, Pages    int // from 1
	From, To, Rows int
	Prev, Next     string // URLs; "" = there is none
}

// First returns the number of the first row of the page, from 1.
func (p pager) First() int { return p.From + 1 }

// pagerOf returns the page that is asked for. A number beyond the last page becomes the last page, because queues
// may have gone since the link was made.
func pagerOf(u *url.URL, asked string, rows, perPage int) pager {
	p := pager{Rows: rows, Pages: max(1, (rows+perPage-1)/perPage)}
	n, err := strconv.Atoi(asked)
	if err != nil {
		n = 1
	}
	p.Page = min(max(1, n), p.Pages)
	p.From, p.To = (p.Page-1)*perPage, min(p.Page*perPage, rows)
	if p.Page > 1 {
		p.Prev = withParam(u, "page", strconv.Itoa(p.Page-1))
	}
	if p.Page < p.Pages {
		p.Next = withParam(u, "page", strconv.Itoa(p.Page+1))
	}
	return p
}

// withParam returns a URL of this host with a changed parameter.
func withParam(u *url.URL, name, value string) string {
	values := u.Query()
	values.Set(name, value)
	return u.EscapedPath() + "?" + values.Encode()
}

// encodeQuery writes parameters from pairs of name and value. It leaves out empty values.
func encodeQuery(pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	if len(values) == 0 {
		return ""
	}
	return "?" + values.Encode()
}

// The chart shows processed and failed jobs per second, as paths in a box of chartWidth x chartHeight,
// which the page stretches.
const (
	chartWidth  = 1000
	chartHeight = 100
	chartSpan   = time.Hour
	chartFine   = time.Minute // every point of it is kept; on a large screen five points are eight pixels wide
)

type chart struct {
	Processed, Area, Failed string // SVG paths; "" = fewer than two points
	Top                     float64
	Last, Peak              rate
	Since                   time.Time // of the first point
}

// Middle returns the value of the line in the middle.
func (c chart) Middle() float64 { return c.Top / 2 }

// chartOf draws the samples of the last hour.
func chartOf(samples []sample, now time.Time) chart {
	for len(samples) > 0 && now.Sub(samples[0].At) > chartSpan {
		samples = samples[1:]
	}
	var c chart
	if len(samples) == 0 {
		return c
	}
	c.Since, c.Last = samples[0].At, samples[len(samples)-1].rate
	for _, s := range samples {
		c.Peak.Processed, c.Peak.Failed = max(c.Peak.Processed, s.Processed), max(c.Peak.Failed, s.Failed)
	}
	c.Top = roundUp(max(c.Peak.Processed, c.Peak.Failed, 1))
	if len(samples) < 2 {
		return c
	}
	c.Processed = pathOf(samples, now, c.Top, func(r rate) float64 { return r.Processed })
	c.Failed = pathOf(samples, now, c.Top, func(r rate) float64 { return r.Failed })
	c.Area = fmt.Sprintf("M%.1f %d%sL%.1f %dZ", xOf(samples[0].At, now), chartHeight,
		"L"+c.Processed[1:], xOf(samples[len(samples)-1].At, now), chartHeight)
	return c
}

// The sparkline of a queue shows its last hour, in a box with a column per minute.
const (
	sparkWidth  = int(chartSpan / time.Minute)
	sparkHeight = 20
)

// spark is the sparkline of a queue, as SVG paths. They change once a minute, apart from their last point.
type spark struct {
	Processed, Failed string // "" if there is none
	Peak              rate
}

// Spark draws the rates of a queue in the last hour.
func (f *figures) Spark() (s spark) {
	for _, past := range f.Past {
		s.Peak.Processed, s.Peak.Failed = max(s.Peak.Processed, past.Processed), max(s.Peak.Failed, past.Failed)
	}
	draw := func(of func(rate) float64) string {
		var path strings.Builder
		for i, past := range f.Past {
			x := sparkWidth - int(f.At.Truncate(time.Minute).Sub(past.At.Truncate(time.Minute))/time.Minute)
			fmt.Fprintf(&path, "%c%d %.0f", "ML"[min(i, 1)], x, sparkHeight*(1-of(past.rate)/max(s.Peak.Processed, s.Peak.Failed)))
		}
		return path.String()
	}
	if len(f.Past) < 2 {
		return s
	}
	if s.Peak.Processed > 0 {
		s.Processed = draw(func(r rate) float64 { return r.Processed })
	}
	if s.Peak.Failed > 0 {
		s.Failed = draw(func(r rate) float64 { return r.Failed })
	}
	return s
}

func xOf(at, now time.Time) float64 {
	return chartWidth * (1 - now.Sub(at).Seconds()/chartSpan.Seconds())
}

func pathOf(samples []sample, now time.Time, top float64, of func(rate) float64) string {
	var path strings.Builder
	for i, s := range samples {
		step := "L"
		if i == 0 {
			step = "M"
		}
		fmt.Fprintf(&path, "%s%.1f %.1f", step, xOf(s.At, now), chartHeight*(1-of(s.rate)/top))
	}
	return path.String()
}

// roundUp returns the next number of 1, 2, 5, 10, 20, 50, …
func roundUp(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 5} {
		if v <= step*unit {
			return step * unit
		}
	}
	return 10 * unit
}
