package protocol

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// A follow-up is a push to any queue that the end of a payload causes. The script that ends the payload stores its
// follow-ups in the key out of the shard (lua/lib/send_on.lua). A relay reads them, delivers each to its queue and
// removes it. Each follow-up has a number. The target's shard keeps the last number of each source, so a follow-up
// that is delivered again is stored once.

// Workflows is the queue of workflows. Its ids are workflows, and the ends of their members are follow-ups to it.
const Workflows = "lowkiq.workflows"

// FollowUp is a push in the form in which its queue stores it.
type FollowUp struct {
	Queue, ID string
	Payload   []byte // in an envelope if it has headers, encoded by the queue's codec
	Score     string // "" stands for the time of the delivery
	At        int64  // when it is due (us), 0 for at once
}

// ErrHops means that a chain of follow-ups is longer than lowkiq.MaxHops. Its job is buried.
var ErrHops = errors.New("too many follow-ups in a chain")

// ErrFollowUp means that a follow-up can never be stored: it is invalid or too large, or a codec or a middleware of its
// queue refuses it.
var ErrFollowUp = errors.New("bad follow-up")

// collectKey is the key of a *collector in the context of pushes that are encoded and not stored.
type collectKey struct{}

// collector takes the pushes of a queue at the end of their way through middlewares and codec.
type collector struct {
	members bool // addresses of workflows' members are allowed
	all     []FollowUp
}

// EncodeFollowUps opens the queues of follow-ups and encodes these; see FollowUpEncoder.
func (c *Client) EncodeFollowUps(ctx context.Context, source string, hops int, all []lowkiq.FollowUp) ([]FollowUp, error) {
	encode, err := c.FollowUpEncoder(ctx, source, hops, all)
	if err != nil {
		return nil, err
	}
	return encode(ctx)
}

// FollowUpEncoder opens the queues of follow-ups, and returns a function that returns the follow-ups as their queues store
// them. They go through the middlewares and the codecs of their queues in this process, except those of a built-in queue,
// whose handler has stored forms already. The follow-ups of a queue keep their order. source is the queue of the job that
// ends, and hops is the largest header hops of its payloads, 0 if there is none.
//
// The errors are lowkiq.ErrUnknownQueue if a queue is not registered, ErrCodec if this process does not have its codec,
// ErrHops if the chain is too long, or ErrFollowUp. After a Transient error the caller may try again. The function calls code
// of users and does not ask Redis, so its errors are never Transient.
func (c *Client) FollowUpEncoder(ctx context.Context, source string, hops int, all []lowkiq.FollowUp) (encode func(context.Context) ([]FollowUp, error), err error) {
	if len(all) == 0 || source == Workflows { // the handler of workflows gets no job of a user, so it is no part of a loop
		return func(context.Context) ([]FollowUp, error) { return storedFollowUps(all), nil }, nil
	}
	if hops >= lowkiq.MaxHops {
		return nil, fmt.Errorf("%w: %d are allowed; a handler or the rule then of a queue pushes in a loop", ErrHops, lowkiq.MaxHops)
	}
	var queues []*Queue // in the order of their first follow-ups
	by := map[string][]lowkiq.Push{}
	for _, one := range all {
		push := one.Push
		switch {
		case CheckNotReserved(one.Queue) != nil:
			return nil, fmt.Errorf("%w: job %.300q: %w", ErrFollowUp, push.ID, CheckNotReserved(one.Queue))
		case push.Urgent:
			return nil, fmt.Errorf("%w: job %.300q of queue %q: it must not be urgent", ErrFollowUp, push.ID, one.Queue)
		case push.ReplyTo != "":
			return nil, fmt.Errorf("%w: job %.300q of queue %q: it must have no reply address", ErrFollowUp, push.ID, one.Queue)
		}
		push.Header = withHeader(push.Header, "hops", strconv.Itoa(hops+1))
		if by[one.Queue] == nil {
			q, err := c.openTarget(ctx, one.Queue)
			if err != nil {
				return nil, fmt.Errorf("follow-up to queue %q: %w", one.Queue, err)
			}
			queues = append(queues, q)
		}
		by[one.Queue] = append(by[one.Queue], push)
	}
	return func(ctx context.Context) ([]FollowUp, error) {
		var into collector
		for _, q := range queues {
			if err := q.collectAll(ctx, &into, by[q.Name]); err != nil {
				return nil, fmt.Errorf("follow-up to queue %q: %w", q.Name, err)
			}
		}
		return into.all, nil
	}, nil
}

// withHeader returns headers with another value for a name.
func withHeader(all map[string]string, name, value string) map[string]string {
	with := make(map[string]string, len(all)+1)
	for k, v := range all {
		with[k] = v
	}
	with[name] = value
	return with
}

// collect is the last step of an encoded follow-up, in place of storeDelivery.
func (q *Queue) collect(into *collector, jobs []lowkiq.Push) ([]Result, error) {
	results, by := make([]Result, len(jobs)), q.rules.Load()
	if into.members {
		jobs = envelope.Members(jobs)
	} else {
		jobs = envelope.All(jobs)
	}
	for i := range jobs {
		if err := envelope.Check(&jobs[i], by.PayloadBytes, by.IDPayload); err != nil {
			results[i].Err = err
			continue
		}
		into.all = append(into.all, asStored(q.Name, &jobs[i]))
	}
	return results, firstError(results)
}

// asStored returns a push whose payload is in its stored form.
func asStored(queue string, push *lowkiq.Push) FollowUp {
	stored := FollowUp{Queue: queue, ID: push.ID, Payload: push.Payload}
	if push.Score != nil {
		stored.Score = strconv.FormatFloat(*push.Score, 'g', 17, 64)
	}
	if !push.PerformAt.IsZero() {
		stored.At = push.PerformAt.UnixMicro()
	}
	return stored
}

// HopsOf returns the largest header hops of payloads, 0 if none has the header.
func HopsOf(payloads []lowkiq.Payload) (hops int) {
	for i := range payloads {
		if h := payloads[i].Header; strings.Contains(string(h), `"hops"`) { // most payloads have none, and are not parsed
			n, _ := strconv.Atoi(h.Get("hops"))
			hops = max(hops, n)
		}
	}
	return hops
}

// Outgoing is a follow-up that waits to be delivered.
type Outgoing struct {
	FollowUp
	Number int64
	// End is "" if the payload is stored as its queue stores it. Otherwise the rule then has made the follow-up, and
	// the payload is stored as the queue of its shard stores it. End is "expired", or "buried" and the error.
	End string
}

// OutgoingPage is a part of the follow-ups that wait in a shard.
type OutgoingPage struct {
	Shard   *Shard
	After   int64 // the page begins after this number
	All     []Outgoing
	Waiting int // number of follow-ups that wait in the shard
	Err     error
	// Delivered has the numbers of the follow-ups that are delivered; see TrimPages.
	Delivered []int64
}

// ReadOutgoing reads pages with at most n follow-ups and about size bytes each, in one round trip. The numbers that it
// returns are on a replica, if their master has any. A master that forgets a delivered number in a failover could give it
// to another follow-up, and the shard that gets it would refuse it.
func (c *Client) ReadOutgoing(ctx context.Context, n, size int, pages ...*OutgoingPage) {
	readOutgoing(ctx, c.db, n, size, pages, true)
}

// readOutgoing reads pages. If replicated is true, it returns only numbers that a replica has.
func readOutgoing(ctx context.Context, db *redisdb.DB, n, size int, pages []*OutgoingPage, replicated bool) {
	run, mode := db.RunAll, ""
	if replicated {
		run, mode = db.RunAllReplicated, "1"
	}
	calls := make([]*redisdb.Call, len(pages))
	for i, p := range pages {
		calls[i] = &redisdb.Call{Script: db.Scripts.Outgoing, Keys: p.Shard.keys.For(db.Scripts.Outgoing), Args: []any{p.After, n, size, mode}}
	}
	run(ctx, calls)
	for i, call := range calls {
		p := pages[i]
		if p.Err = call.Err; p.Err == nil {
			p.Err = p.decode(call.Reply)
		}
		if p.Err != nil {
			p.Err = fmt.Errorf("shard %s: %w", p.Shard, p.Err)
		}
	}
}

// decode reads the answer of lua/outgoing.lua.
func (p *OutgoingPage) decode(reply any) error {
	const fields = 7
	r, _ := reply.([]any)
	if len(r)%fields != 1 {
		return fmt.Errorf("outgoing answered %.100v", reply)
	}
	waiting, _ := r[0].(int64)
	p.Waiting, p.All = int(waiting), make([]Outgoing, 0, len(r)/fields)
	for of := range slices.Chunk(r[1:], fields) {
		p.All = append(p.All, Outgoing{
			Number:   redisdb.Int(of[0]),
			FollowUp: FollowUp{Queue: redisdb.Text(of[1]), ID: redisdb.Text(of[2]), Payload: []byte(redisdb.Text(of[3])), Score: redisdb.Text(of[4]), At: redisdb.Int(of[5])},
			End:      redisdb.Text(of[6]),
		})
	}
	return nil
}

// Shipment has follow-ups of a shard for one shard of another queue.
type Shipment struct {
	From  *Shard
	Queue *Queue
	To    *Shard     // of Queue
	All   []Outgoing // in the order of their numbers, as Queue stores them
	// Before has the numbers of follow-ups that a former layout of Queue has. They are taken out of All.
	Before []int64
	// Delivered is the number of follow-ups at the beginning of All that To has now.
	Delivered int
	// Err is why the next follow-up is not delivered; nil if all are.
	Err error
}

// maxShipment is the maximum number of follow-ups of a script.
const maxShipment = 200

// DeliverOutgoing delivers shipments to their shards, each follow-up exactly once. It sets Delivered and Err. After a refusal
// it sends no later follow-up of that shipment, so that the order stays.
func (c *Client) DeliverOutgoing(ctx context.Context, shipments []*Shipment) {
	var open []*Shipment
	for _, s := range shipments {
		if s.Err = s.takeOutFormer(ctx); s.Err == nil && len(s.All) > 0 {
			open = append(open, s)
		}
	}
	for len(open) > 0 {
		calls := make([]*redisdb.Call, len(open))
		for i, s := range open {
			calls[i] = s.call()
		}
		c.db.RunAllReplicated(ctx, calls)
		var next []*Shipment
		for i, s := range open {
			s.read(ctx, calls[i])
			if s.Err == nil && s.Delivered < len(s.All) {
				next = append(next, s)
			}
		}
		open = next
	}
}

// takeOutFormer takes the follow-ups out of a shipment that a shard of a former layout has. The numbers of sources stay
// there when a queue gets another number of shards, and nothing changes them any more.
func (s *Shipment) takeOutFormer(ctx context.Context) error {
	g, was := s.Queue.registry, s.Queue.formers(SourceAge)
	if len(was) == 0 {
		return nil
	}
	taken := map[string]int64{} // the last number by key
	var keys []string
	keyOf := func(f Former, id string) string {
		shard := g.db.Keys.Shard(s.Queue.Name, f.Layout, lowkiq.ShardOf(id, f.Shards))
		return shard.From
	}
	var cmds []redisdb.Cmd
	for _, o := range s.All {
		for _, f := range was {
			key := keyOf(f, o.ID)
			if _, asked := taken[key]; !asked {
				taken[key] = 0
				keys, cmds = append(keys, key), append(cmds, redisdb.Cmd{"HGET", key, s.From.source()})
			}
		}
	}
	replies, err := g.db.Pipeline(ctx, "read the numbers of follow-ups", cmds...)
	if err != nil {
		return fmt.Errorf("queue %q: %w", s.Queue.Name, err)
	}
	for i, key := range keys {
		taken[key] = redisdb.Int(replies[i])
	}
	s.All = slices.DeleteFunc(slices.Clone(s.All), func(o Outgoing) bool {
		before := slices.ContainsFunc(was, func(f Former) bool { return o.Number <= taken[keyOf(f, o.ID)] })
		if before {
			s.Before = append(s.Before, o.Number)
		}
		return before
	})
	return nil
}

// source returns the name of a shard as a source of deliveries.
func (s *Shard) source() string {
	_, layout, _, _, _ := redisdb.ParseShard(s.keys.Out)
	return fmt.Sprintf("out/%s/%d/%d", s.Queue, layout, s.Index)
}

// call returns the call of lua/deliver.lua for the next follow-ups of a shipment.
func (s *Shipment) call() *redisdb.Call {
	script := s.To.registry.db.Scripts.Deliver
	rules := s.Queue.rules.Load()
	// A payload that is larger than the present limit goes alone, into an empty id. The limit was higher when its job
	// ended, and nothing else would ever let the payload or its followers through.
	limit := max(rules.IDPayload, len(s.All[s.Delivered].Payload))
	args, numbers, size := []any{"m", rules.Payloads, limit, s.To.keys.Wake}, []any{s.From.source()}, 0
	for i, one := range s.All[s.Delivered:] {
		if size += len(one.Payload); i == maxShipment || i > 0 && (size > maxChunkBytes || max(limit, len(one.Payload)) > rules.IDPayload) {
			break
		}
		at := ""
		if one.At != 0 {
			at = strconv.FormatInt(one.At, 10)
		}
		args = append(args, one.ID, one.Payload, one.Score, at)
		numbers = append(numbers, one.Number)
	}
	return &redisdb.Call{Script: script, Keys: s.To.keys.For(script), Args: append(args, numbers...)}
}

// read reads the answer of lua/deliver.lua.
func (s *Shipment) read(ctx context.Context, call *redisdb.Call) {
	if s.Err = s.To.Refused(ctx, call.Err); s.Err != nil || call.Err != nil {
		return // without an error the mark of a deletion is gone, and the call is repeated
	}
	codes, _ := call.Reply.(string)
	if codes == "" || len(codes) > len(s.All)-s.Delivered {
		s.Err = fmt.Errorf("shard %s: deliver answered %.50v", s.To, call.Reply)
		return
	}
	for i := range codes {
		if code := codes[i]; code != '0' && code != '1' && code != 'd' {
			s.Err = (&chunk{Call: *call}).recordRefusal(code, s.All[s.Delivered].ID)
			return
		}
		s.Delivered++
	}
}

// TrimOutgoing removes follow-ups with these numbers. It returns how many were there, and how many are left.
func (s *Shard) TrimOutgoing(ctx context.Context, numbers ...int64) (gone, left int, err error) {
	for part := range slices.Chunk(numbers, maxTrim) {
		call := s.trimCall(part)
		reply, err := runScript(ctx, s.registry.db, call.Script, call.Keys, call.Args...)
		if err != nil {
			return gone, left, fmt.Errorf("shard %s: %w", s, err)
		}
		r, ok := twoNumbers(reply)
		if !ok {
			return gone, left, fmt.Errorf("shard %s: outgoing_trim answered %v", s, reply)
		}
		gone, left = gone+r[0], r[1]
	}
	return gone, left, nil
}

const maxTrim = 1000 // follow-ups of a script

func (s *Shard) trimCall(numbers []int64) *redisdb.Call {
	args := make([]any, len(numbers))
	for i, n := range numbers {
		args[i] = n
	}
	script := s.registry.db.Scripts.OutgoingTrim
	return &redisdb.Call{Script: script, Keys: s.keys.For(script), Args: args}
}

// TrimPages removes the delivered follow-ups of pages, at most maxTrim of each, in one round trip. A follow-up that
// stays because of an error is delivered again, and refused.
func (c *Client) TrimPages(ctx context.Context, pages ...*OutgoingPage) error {
	var calls []*redisdb.Call
	for _, p := range pages {
		if len(p.Delivered) > 0 {
			calls = append(calls, p.Shard.trimCall(p.Delivered))
		}
	}
	if len(calls) == 0 {
		return nil
	}
	c.db.RunAll(ctx, calls)
	var errs []error
	for _, call := range calls {
		errs = append(errs, call.Err)
	}
	return errors.Join(errs...)
}

// HaveOutgoing returns the shards where follow-ups wait.
func (c *Client) HaveOutgoing(ctx context.Context, shards ...*Shard) ([]*Shard, error) {
	return haveOutgoing(ctx, c.db, shards)
}

func haveOutgoing(ctx context.Context, db *redisdb.DB, shards []*Shard) (some []*Shard, err error) {
	for part := range slices.Chunk(shards, shardsPerPipeline) {
		cmds := make([]redisdb.Cmd, len(part))
		for i, s := range part {
			cmds[i] = redisdb.Cmd{"EXISTS", s.keys.Out}
		}
		replies, err := db.Pipeline(ctx, "look for follow-ups", cmds...)
		if err != nil {
			return some, err
		}
		for i, reply := range replies {
			if redisdb.Int(reply) > 0 {
				some = append(some, part[i])
			}
		}
	}
	return some, nil
}

// WaitingFollowUp is a follow-up as people see it.
type WaitingFollowUp struct {
	Outgoing // without its payload
	Shard    *Shard
	Bytes    int // of its payload
}

// Outgoing returns the first n follow-ups of the queue that wait, the oldest first, and the number of all. n is at most
// 1,000. It may return fewer, because it reads at most about pageBytes of a shard.
func (q *Queue) Outgoing(ctx context.Context, n int) (first []WaitingFollowUp, waiting int, err error) {
	if n < 0 || n > maxTrim {
		return nil, 0, fmt.Errorf("queue %q: %d follow-ups; the number must be between 0 and %d", q.Name, n, maxTrim)
	}
	some, err := haveOutgoing(ctx, q.registry.db, q.shards)
	if err != nil {
		return nil, 0, err
	}
	horizon := int64(math.MaxInt64)           // a shard may have follow-ups behind this number that were not read
	for part := range slices.Chunk(some, 8) { // a page has up to pageBytes
		pages := make([]*OutgoingPage, len(part))
		for i, s := range part {
			pages[i] = &OutgoingPage{Shard: s}
		}
		readOutgoing(ctx, q.registry.db, max(1, n), pageBytes, pages, false)
		for _, p := range pages {
			if p.Err != nil {
				return nil, 0, p.Err
			}
			waiting += p.Waiting
			if last := len(p.All) - 1; last >= 0 && len(p.All) < min(n, p.Waiting) {
				horizon = min(horizon, p.All[last].Number)
			}
			for _, o := range p.All {
				bytes := len(o.Payload)
				o.Payload = nil
				first = append(first, WaitingFollowUp{o, p.Shard, bytes})
			}
		}
		slices.SortFunc(first, func(x, y WaitingFollowUp) int { return cmp.Compare(x.Number, y.Number) })
		first = slices.Clone(first[:min(n, len(first))])
	}
	first = slices.DeleteFunc(first, func(o WaitingFollowUp) bool { return o.Number > horizon })
	return first, waiting, nil
}

const pageBytes = 1 << 20

// DropOutgoing removes the first n follow-ups of the queue that wait, the oldest first. They are never delivered. It
// returns the number of removed follow-ups by target queue. After an error it may have removed some.
func (q *Queue) DropOutgoing(ctx context.Context, n int) (dropped map[string]int, err error) {
	dropped = map[string]int{}
	for left := n; left > 0; {
		first, _, err := q.Outgoing(ctx, min(left, maxTrim))
		if err != nil || len(first) == 0 {
			return dropped, err
		}
		type route struct {
			from *Shard
			to   string
		}
		by := map[route][]int64{}
		for _, one := range first {
			r := route{one.Shard, one.Queue}
			by[r] = append(by[r], one.Number)
		}
		for r, numbers := range by {
			gone, _, err := r.from.TrimOutgoing(ctx, numbers...)
			if gone > 0 {
				dropped[r.to] += gone
				left -= gone
			}
			if err != nil {
				return dropped, err
			}
		}
	}
	return dropped, nil
}

// StoreDeadTo stores the queue that gets the shard's dead payloads by the rule then, "" for none, if the claim has
// stored another. See Client.SetDeadTo for later claims.
func (c *Claim) StoreDeadTo(ctx context.Context, queue string) error {
	if was := c.deadTo.Load(); was != nil && *was == queue {
		return nil
	}
	if _, err := c.Run(ctx, c.registry.db.Scripts.DeadTo, c.Instance, c.fence, queue); err != nil {
		return fmt.Errorf("shard %s: %w", c.Shard, err)
	}
	c.deadTo.Store(&queue)
	return nil
}

// Open returns the payload of a follow-up by the rule then, as the queue of its shard stores it.
func (o *Outgoing) Open() (lowkiq.Payload, error) {
	content, ok := envelope.Open(string(o.Payload))
	if !ok {
		return lowkiq.Payload{}, fmt.Errorf("job %.300q: %w, in its envelope", o.ID, ErrDamaged)
	}
	return lowkiq.Payload{Data: []byte(content.Data), Header: content.Header}, nil
}

// EndWord returns how the payload has ended that the rule then passes on, buried or expired. It returns "" for other
// follow-ups.
func (o *Outgoing) EndWord() string {
	word, _, _ := strings.Cut(o.End, "\n")
	return word
}

// Since returns the time since when a follow-up has waited, nearly. Its number is that time, or higher if many came at once.
func (o *Outgoing) Since() time.Time { return time.UnixMicro(o.Number) }
