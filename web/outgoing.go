package web

import (
	"cmp"
	"net/http"

	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/web/auth"
)

// maxOutgoing is the number of follow-ups in an answer.
const maxOutgoing = 100

// listOutgoing answers with the follow-ups of a queue that wait to be delivered.
func (a *api) listOutgoing(q *protocol.Queue, _ http.ResponseWriter, r *http.Request) (any, error) {
	first, waiting, err := q.Outgoing(r.Context(), maxOutgoing)
	if err != nil {
		return nil, err
	}
	answer := Outgoing{Queue: q.Name, Waiting: waiting, First: make([]OutgoingPush, len(first))}
	for i := range first {
		one := &first[i]
		answer.First[i] = OutgoingPush{JobID: JobIDOf(one.ID), Shard: one.Shard.Index, Since: float64(one.Number) / 1e6, To: one.Queue, Bytes: one.Bytes, Ended: one.EndWord()}
	}
	if waiting > 0 {
		handled, err := a.cfg.Cluster.Handled(r.Context())
		if err != nil {
			return nil, err
		}
		for i := range handled {
			answer.Reason = cmp.Or(answer.Reason, handled[i].Outgoing[q.Name])
		}
	}
	return answer, nil
}

// dropOutgoing removes follow-ups of a queue.
func (a *api) dropOutgoing(q *protocol.Queue, w http.ResponseWriter, r *http.Request) (any, error) {
	var want OutgoingDrop
	if err := a.readOptionalBody(w, r, &want, `{"drop":1}`); err != nil {
		return nil, err
	}
	if want.Drop < 1 {
		return nil, NewProblem(http.StatusBadRequest, "drop: must be a whole number of at least 1, got %d", want.Drop)
	}
	dropped, err := a.operator.DropOutgoing(r.Context(), auth.Who(r), q, want.Drop)
	if err != nil {
		return nil, err
	}
	_, waiting, err := q.Outgoing(r.Context(), 0)
	return OutgoingDropped{dropped, waiting}, err
}
