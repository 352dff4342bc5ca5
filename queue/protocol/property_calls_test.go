package protocol_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/model"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/journal"
)

// machineCalls is the machine's part for calls, results and states.
type machineCalls struct {
	addresses []string // of the calls so far
	stateFor  time.Duration
	heard     *redis.PubSub // what is told; nil if messages may arrive in another order than they are sent
	markers   int
	named     map[string]bool // flights and ids of the acks that are drawn
}

// machineChannels are the channels of the calling clients.
var machineChannels = []string{"one", "two"}

// machineKeep is the minimum time for which replies are kept, longer than any test lasts.
const machineKeep = time.Hour

// newAddress returns the address of a new call.
func (m *machine) newAddress() string {
	n := len(m.addresses)
	channel := m.q.Shard(0).DB().Keys.Replies(machineChannels[n%len(machineChannels)])
	m.addresses = append(m.addresses, envelope.Address(fmt.Sprintf("token_%d-", n), machineKeep+time.Duration(n)*time.Minute, channel))
	return m.addresses[n]
}

// drawAddress draws the address of a call. Seldom it is an earlier address, as of a push that is repeated.
// It is "" for a payload without a caller.
func (m *machine) drawAddress(t *rapid.T) string {
	switch kind := rapid.IntRange(0, 7).Draw(t, "address"); {
	case kind < 5:
		return ""
	case kind == 7 && len(m.addresses) > 0:
		return rapid.SampledFrom(m.addresses).Draw(t, "again")
	}
	return m.newAddress()
}

var (
	drawResult = rapid.SampledFrom([]*string{nil, new(""), new("r"), new("buried\nno"), new(strings.Repeat("R", 300)), new(strings.Repeat("long", 5000))})
	drawState  = rapid.SampledFrom([]*string{nil, nil, nil, new(""), new("s"), new("-"), new("a later\x00state")})
)

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

// stateText distinguishes a state without bytes from no state.
func stateText(state []byte) string {
	if state == nil {
		return "none"
	}
	return "is " + string(state)
}

// drawAcks draws acks, most of them with answers.
func (m *machine) drawAcks(t *rapid.T, model *modelShard) (acks []Acks) {
	acks = drawFlying(t, model)
	m.named = map[string]bool{}
	if len(model.InFlight) > 0 && rapid.IntRange(0, 3).Draw(t, "the rest") == 0 {
		flight := model.FlightOf[rapid.SampledFrom(slices.Sorted(maps.Keys(model.InFlight))).Draw(t, "of")]
		rest := Acks{Flight: flight, Rest: true}
		for _, id := range slices.Sorted(maps.Keys(model.InFlight)) {
			if model.FlightOf[id] == flight {
				rest.IDs = append(rest.IDs, id)
			}
		}
		slices.SortFunc(rest.IDs, func(x, y string) int { return model.PopOrder[x] - model.PopOrder[y] }) // as they are taken out
		acks = append(acks, rest)
	}
	for i := range acks {
		m.drawRuns(t, model, &acks[i])
		if !acks[i].Runs.Empty() { // one id, or all of a flight
			acks[i].InRow = rapid.Bool().Draw(t, "in row")
			acks[i].Rest = acks[i].Rest && !acks[i].InRow
		}
	}
	if len(model.Notes) == 0 && rapid.IntRange(0, 3).Draw(t, "no more than done") == 0 {
		return acks
	}
	drawn := map[string]bool{} // of an id that is named twice the same answer would have to come twice
	for i := range acks {
		for _, id := range acks[i].IDs {
			if name := fmt.Sprint(acks[i].Flight, " ", id); drawn[name] {
				continue
			} else {
				drawn[name] = true
			}
			_, noted := model.Notes[id]
			if !noted && rapid.IntRange(0, 3).Draw(t, "answer") == 0 {
				continue
			}
			answer := Answer{ID: id, Callers: model.InFlight[id].CountCallers(), Result: bytesOf(drawResult.Draw(t, "result")), StateFor: m.stateFor, HasNotes: noted}
			if answer.SetState = rapid.Bool().Draw(t, "stated"); answer.SetState {
				answer.State = bytesOf(drawState.Draw(t, "state"))
			}
			acks[i].Answers = append(acks[i].Answers, answer)
		}
	}
	return acks
}

// drawRan draws the circumstances of a run for the journal.
func drawRan(t *rapid.T) journal.Ran {
	return journal.Ran{Log: rapid.SampledFrom([]string{"", "", "a line", "two\nlines\x00\xff"}).Draw(t, "log")}
}

// drawRuns draws the lines of acks, if the journal keeps done runs. An id that is named twice has its line
// at the first place.
func (m *machine) drawRuns(t *rapid.T, model *modelShard, acks *Acks) {
	if !model.Journal.KeepsSome(journal.Done) {
		return
	}
	for _, id := range acks.IDs {
		name := fmt.Sprint(acks.Flight, " ", id)
		again := m.named[name]
		m.named[name] = true
		if again || rapid.IntRange(0, 5).Draw(t, "no line") == 0 {
			acks.Runs.Add(nil)
			continue
		}
		acks.Runs.Add(&journal.Run{ID: id, Verdict: journal.Done, RetryCount: model.InFlight[id].Retry, Ran: drawRan(t), Result: bytesOf(drawResult.Draw(t, "result"))})
	}
}

// note lets a handler note progress or set a state, sometimes for a job that it does not have any more.
func (m *machine) note(t *rapid.T) {
	_, model, claim := m.drawShard(t)
	m.step()
	for _, a := range drawFlying(t, model) {
		note := Note{Flight: a.Flight, ID: a.IDs[0], Note: lowkiq.Note{
			Progress: rapid.SampledFrom([]float64{0, 0.25, 1}).Draw(t, "progress"), Log: rapid.SampledFrom([]string{"", "half\na line"}).Draw(t, "log"),
			State: bytesOf(drawState.Draw(t, "state")),
		}}
		err := claim.Note(m.ctx, note)
		if want := model.AddNote(note); want != (err == nil) || err != nil && !errors.Is(err, lowkiq.ErrEnded) {
			t.Fatalf("note %+v: got %v, want it taken: %t", note, err, want)
		}
	}
}

// compareReplies compares the replies stored under the tokens of all calls, in each shard.
func (m *machine) compareReplies(t *rapid.T) {
	for i, shard := range m.models {
		keys, rdb := m.q.Shard(i).Keys(), m.q.Shard(i).DB().ForTests()
		pipe := rdb.Pipeline()
		for _, address := range m.addresses {
			to, _ := envelope.ParseAddress(address)
			pipe.Get(m.ctx, keys.ReplyTo(to.Token))
			pipe.PTTL(m.ctx, keys.ReplyTo(to.Token))
		}
		cmds, _ := pipe.Exec(m.ctx)
		for k, address := range m.addresses {
			to, _ := envelope.ParseAddress(address)
			text, err := cmds[2*k].(*redis.StringCmd).Result()
			left := cmds[2*k+1].(*redis.DurationCmd).Val()
			if name, ok := strings.CutPrefix(text, "see "); ok {
				text, err = rdb.Get(m.ctx, keys.ReplyTo(name)).Result()
				if of := rdb.PTTL(m.ctx, keys.ReplyTo(name)).Val(); of < left-time.Minute {
					t.Fatalf("shard %d: reply %s is kept for %v, and the text that it names for %v", i, to.Token, left, of)
				}
			}
			want, told := shard.Replies[to.Token]
			if told != (err == nil) || text != want.Text || told && (left > want.Keep || left < want.Keep-machineKeep/2) {
				t.Fatalf("shard %d: reply %s: got %.40q, %v, kept for %v, want %t, %.40q for %v", i, to.Token, text, err, left, told, want.Text, want.Keep)
			}
		}
	}
}

// listen collects the messages to the machine's calls.
func (m *machine) listen(t *rapid.T, heard *redis.PubSub) {
	db := m.q.Shard(0).DB()
	if db.Sharded { // the bus between the masters keeps no order
		return
	}
	m.heard = heard
	channels := []string{db.Keys.Replies("marker")}
	for _, name := range machineChannels {
		channels = append(channels, db.Keys.Replies(name))
	}
	if err := heard.Unsubscribe(m.ctx); err != nil { // from those of the machine before
		t.Fatal(err)
	}
	if err := heard.Subscribe(m.ctx, channels...); err != nil {
		t.Fatal(err)
	}
}

// compareNews compares the messages since the last time. A message of its own marks their end.
func (m *machine) compareNews(t *rapid.T) {
	var want, got []model.Message
	for _, shard := range m.models {
		want, shard.Messages = append(want, shard.Messages...), nil
	}
	if m.heard == nil {
		return
	}
	m.markers++
	db, marker := m.q.Shard(0).DB(), fmt.Sprint(m.markers)
	if err := db.ForTests().Publish(m.ctx, db.Keys.Replies("marker"), marker).Err(); err != nil {
		t.Fatal(err)
	}
	for {
		msg, err := m.heard.ReceiveTimeout(m.ctx, time.Minute)
		if err != nil {
			t.Fatalf("messages: %v", err)
		}
		one, ok := msg.(*redis.Message)
		if !ok || !strings.HasPrefix(one.Channel, db.Keys.Replies("")) { // of the machine before
			continue
		}
		if one.Channel == db.Keys.Replies("marker") {
			if one.Payload == marker {
				break
			}
			continue
		}
		tokens, text, _ := strings.Cut(one.Payload, "\n")
		for token := range strings.SplitSeq(tokens, " ") {
			got = append(got, model.Message{Channel: one.Channel, Token: token, Text: text})
		}
	}
	for _, list := range [][]model.Message{got, want} {
		slices.SortFunc(list, func(x, y model.Message) int {
			return cmp.Or(cmp.Compare(x.Channel, y.Channel), cmp.Compare(x.Token, y.Token), cmp.Compare(x.Text, y.Text))
		})
	}
	same(t, "told", fmt.Sprintf("%.60q", got), fmt.Sprintf("%.60q", want))
}
