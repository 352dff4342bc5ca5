package queue

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Permits are those for handler calls of a queue, of which the cluster has so many at once; see lua/permit.lua.
type Permits struct {
	db    *redisdb.DB
	queue string
}

// Permits are those of a queue.
func (c *Client) Permits(queue string) Permits { return Permits{c.DB(), queue} }

// PermitRequest is what an instance asks for.
type PermitRequest struct {
	Instance string
	Number   int64 // one more with each request of the instance, but for one that is sent again
	Limit    int   // of the cluster
	Has      int   // permits that it has, or calls, if these are more; until the answer there are no more calls than that
	Wanted   int   // calls that it could have at once
	Kept     int   // calls that it has had of late: it keeps permits for these if nobody lacks them
}

// PermitGrant is the answer to it.
type PermitGrant struct {
	May    int  // calls that it may have from now on; if these are fewer than it has, none may begin until fewer run
	Before int  // it has none, and so many instances are to get one before it
	Lack   bool // others want more than they have
	Askers int  // instances that want some
}

// PermitTurn is for how long an instance has permits of a limit while these are fewer than instances that want one: long enough that
// no more than 400 a second change hands.
func PermitTurn(limit int) time.Duration {
	return max(500*time.Millisecond, time.Duration(limit)*time.Second/400)
}

// Ask says how many calls the instance may have from now on. After an error it is to have no more than it had; ErrGone of
// package lease is final.
func (p Permits) Ask(ctx context.Context, r PermitRequest) (PermitGrant, error) {
	reply, err := p.db.Run(ctx, p.db.Scripts.Permit, []string{p.db.Keys.Permits(p.queue), p.db.Keys.Permitsx(p.queue), p.db.Keys.Leases()},
		r.Instance, r.Number, r.Limit, r.Has, r.Wanted, r.Kept, PermitTurn(r.Limit).Microseconds())
	if err != nil {
		return PermitGrant{}, fmt.Errorf("permits of queue %q: %w", p.queue, limitRefusal(err))
	}
	n := redisdb.List(reply)
	if len(n) != 4 || redisdb.Int(n[0]) < 0 {
		return PermitGrant{}, fmt.Errorf("permits of queue %q: got %v, want four numbers", p.queue, reply)
	}
	return PermitGrant{
		May: int(redisdb.Int(n[0])), Before: int(redisdb.Int(n[1])), Lack: redisdb.Int(n[2]) == 1, Askers: int(redisdb.Int(n[3]))}, nil
}

// Holders are the instances that hold permits, and how many; those that have died since the last request included.
func (p Permits) Holders(ctx context.Context) (map[string]int, error) {
	replies, err := p.db.Pipeline(ctx, "read permits", redisdb.Cmd{"HGETALL", p.db.Keys.Permits(p.queue)})
	if err != nil {
		return nil, err
	}
	holders, flat := map[string]int{}, redisdb.List(replies[0])
	for i := 0; i+1 < len(flat); i += 2 {
		if redisdb.Text(flat[i]) == "" { // the sums
			continue
		}
		var number, held int
		if _, err := fmt.Sscan(redisdb.Text(flat[i+1]), &number, &held); err == nil && held > 0 {
			holders[strings.Clone(redisdb.Text(flat[i]))] = held
		}
	}
	return holders, nil
}

// RateGrant says what the rate of a queue lets go.
type RateGrant struct {
	Batches int           // so many of those asked for, the first ones, may be handed out
	Left    int           // ids that might be besides
	Wait    time.Duration // until the next batch may be asked for; if all were let go, an id
}

// RatesAtOnce is for how many batches one request may ask.
const RatesAtOnce = 200

// RateAgain is how long one waits at most before he asks for a batch again that could not go: smaller ones wait behind it for no longer
// than it is asked for.
const RateAgain = 10 * time.Second

// TakeRate takes batches of so many ids each from what the rate of a queue allows now, in their order. After an error it may have
// taken them, for nothing.
func (c *Client) TakeRate(ctx context.Context, queue string, limit rules.Limit, batches []int) (grant RateGrant, err error) {
	db := c.DB()
	args := make([]any, 3, 3+len(batches))
	args[0], args[1], args[2] = fmt.Sprintf("%.3f", float64(limit.Rate.Per.Microseconds())/float64(limit.Rate.N)), limit.Burst, RateAgain.Microseconds()
	for _, n := range batches {
		args = append(args, n)
	}
	reply, err := db.Run(ctx, db.Scripts.Rate, []string{db.Keys.Rate(queue)}, args...)
	if err != nil {
		return RateGrant{}, fmt.Errorf("rate of queue %q: %w", queue, err)
	}
	var n [3]int64
	for i, v := range redisdb.List(reply) {
		if i < len(n) {
			n[i], _ = v.(int64)
		}
	}
	if len(redisdb.List(reply)) != len(n) || n[0] < 0 || n[0] > int64(len(batches)) || n[1] < 0 || n[2] < 0 {
		return RateGrant{}, fmt.Errorf("rate of queue %q: got %v, want how many of %d batches, ids, and a time", queue, reply, len(batches))
	}
	return RateGrant{Batches: int(n[0]), Left: int(n[1]), Wait: time.Duration(n[2]) * time.Microsecond}, nil
}
