package protocol_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/transfer"

	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq/internal/model"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
)

// machineImports is the machine's part for imports from other systems.
type machineImports struct {
	imported map[string][]transfer.Entry // by source: what it had so far, by number
}

// machineParts is the number of payloads in a part of an entry.
const machineParts = 25

var errGivenUp = errors.New("the source cannot give it")

// importSome sends entries of a source: new entries, and entries that were sent before, also refused ones.
func (m *machine) importSome(t *rapid.T) {
	source := rapid.SampledFrom([]string{"old", "other"}).Draw(t, "source")
	if m.imported == nil {
		m.imported = map[string][]transfer.Entry{}
	}
	var entries []transfer.Entry
	if sent := m.imported[source]; len(sent) > 0 && rapid.IntRange(0, 2).Draw(t, "again") == 0 {
		for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, len(sent)-1), 1, min(4, len(sent)), rapid.ID).Draw(t, "sent before") {
			entry := sent[i]
			if entry.Err != nil && rapid.Bool().Draw(t, "mended") {
				entry.Err = nil
			}
			entries = append(entries, entry)
		}
		slices.SortFunc(entries, func(x, y transfer.Entry) int { return int(x.Number - y.Number) })
	}
	for range rapid.IntRange(min(1, 1-len(entries)), 4).Draw(t, "new") {
		entry := m.drawEntry(t)
		if sent := m.imported[source]; len(sent) > 0 {
			entry.Number = sent[len(sent)-1].Number
		}
		entry.Number += rapid.Int64Range(1, 3).Draw(t, "number")
		entries, m.imported[source] = append(entries, entry), append(m.imported[source], entry)
	}
	m.step()
	results, _ := transfer.ImportInParts(m.ctx, m.q, machineParts, source, entries...)
	for i := range entries {
		e := &entries[i]
		want := m.of(e.ID).ImportEntry("import/"+source, m.modelEntry(e))
		got := importVerdict(results[i])
		if got == model.Refused && want == model.Behind && e.Err != nil {
			got = want // what the caller knows is said first
		}
		if got == model.Before && want == model.Stored && m.ctx.Value(twiceKey{}) != nil {
			got = want // the call before, which ended early, has come twice
		}
		same(t, fmt.Sprintf("import of %s %d", source, e.Number), got, want)
	}
}

func (m *machine) drawEntry(t *rapid.T) transfer.Entry {
	e := transfer.Entry{ID: drawID.Draw(t, "id"), RetryCount: rapid.SampledFrom([]int{-1, -1, 0, 3}).Draw(t, "retry count")}
	e.Error = rapid.SampledFrom([]string{"", "boom", "nul\x00 \n\xff"}).Draw(t, "error")
	if rapid.Bool().Draw(t, "timed") {
		e.Due = time.Now().Truncate(time.Hour).Add(time.Duration(drawHours.Draw(t, "hours")) * time.Hour).UnixMicro()
	}
	if rapid.IntRange(0, 4).Draw(t, "morgue") == 0 {
		e.Morgue, e.Buried, e.Due = true, e.Due, 0
	}
	switch rapid.IntRange(0, 9).Draw(t, "form") {
	case 0: // a crowd
		score := drawScore.Draw(t, "score")
		for i := range rapid.IntRange(20, 100).Draw(t, "n") {
			e.Payloads = append(e.Payloads, transfer.Payload{Score: score + float64(i%3), Data: fmt.Append(nil, i%70)})
		}
	case 1, 2, 3:
		for range rapid.IntRange(2, 4).Draw(t, "n") {
			e.Payloads = append(e.Payloads, transfer.Payload{Score: drawScore.Draw(t, "score"), Data: []byte(drawPayload.Draw(t, "payload"))})
		}
	case 4:
		e.Err = errGivenUp
		fallthrough
	default:
		e.Payloads = []transfer.Payload{{Score: drawScore.Draw(t, "score"), Data: []byte(drawPayload.Draw(t, "payload"))}}
	}
	return e
}

// modelEntry returns an entry for the model.
func (m *machine) modelEntry(e *transfer.Entry) *model.ImportEntry {
	of := &model.ImportEntry{Number: e.Number, ID: e.ID, Retry: e.RetryCount, At: e.Due, Err: e.Error, Morgue: e.Morgue, Refused: e.Err != nil}
	if e.Morgue {
		of.At = e.Buried
	}
	all := &modelJob{}
	for _, p := range e.Payloads {
		data := string(envelope.Wrap("", "", p.Data))
		if k := slices.IndexFunc(all.Payloads, func(q modelPayload) bool { return q.Data == data }); k >= 0 {
			all.Payloads[k].Score = min(all.Payloads[k].Score, p.Score)
		} else {
			all.Payloads = append(all.Payloads, modelPayload{Data: data, Score: p.Score})
		}
	}
	of.Payloads = all.InOrder()
	of.ManyParts = len(of.Payloads) > machineParts
	return of
}

func importVerdict(r transfer.Result) model.Verdict {
	switch {
	case r.Before:
		return model.Before
	case errors.Is(r.Err, transfer.ErrBehind):
		return model.Behind
	case errors.Is(r.Err, errGivenUp):
		return model.Refused
	}
	return verdictOf(Result{Err: r.Err})
}
