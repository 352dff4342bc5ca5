package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// maxOutgoing is the number of follow-ups that the page of a queue counts by target.
const maxOutgoing = 1000

// outgoingBody is the part of a queue's page about follow-ups that wait.
type outgoingBody struct {
	Queue string
	Rows  []outgoingRow
	More  int // follow-ups behind those that are counted
	Drops bool
	Now   time.Time
}

// outgoingRow has the follow-ups for a queue.
type outgoingRow struct {
	To      string
	Waiting int
	Since   time.Time // when the oldest came
	Bytes   int
}

// readOutgoing counts the oldest follow-ups of a queue by target. It returns nil if none waits.
func (d *Dashboard) readOutgoing(ctx context.Context, name string) (*outgoingBody, error) {
	q, err := d.client.Queue(ctx, name)
	if err != nil {
		return nil, err
	}
	first, waiting, err := q.Outgoing(ctx, maxOutgoing)
	if err != nil || waiting == 0 {
		return nil, err
	}
	return countOutgoing(name, first, waiting), nil
}

// countOutgoing counts follow-ups by target, in the order of the oldest.
func countOutgoing(name string, first []protocol.WaitingFollowUp, waiting int) *outgoingBody {
	b := &outgoingBody{Queue: name, More: waiting - len(first), Now: time.Now()}
	for i := range first {
		one := &first[i]
		k := slices.IndexFunc(b.Rows, func(row outgoingRow) bool { return row.To == one.Queue })
		if k < 0 {
			k, b.Rows = len(b.Rows), append(b.Rows, outgoingRow{To: one.Queue, Since: one.Since()})
		}
		b.Rows[k].Waiting++
		b.Rows[k].Bytes += one.Bytes
	}
	return b
}

// dropOutgoing drops the oldest follow-ups of a queue, once the sender has confirmed it.
func (d *Dashboard) dropOutgoing(w http.ResponseWriter, r *http.Request) {
	d.handlePage(func(r *http.Request) (view, error) {
		q, form, err := d.formOf(w, r)
		if err != nil {
			return view{}, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(form.Get("drop")))
		switch {
		case err != nil || n < 1:
			return view{}, web.NewProblem(http.StatusBadRequest, "drop: must be a whole number of at least 1, got %.40q", form.Get("drop"))
		case form.Get("confirmed") == "":
			return view{}, web.NewProblem(http.StatusBadRequest, "Nothing is dropped, because the box was not checked.")
		}
		_, err = d.operator.DropOutgoing(r.Context(), auth.Who(r), q, n)
		return view{Redirect: "/queues/" + url.PathEscape(q.Name)}, err
	})(w, r)
}
