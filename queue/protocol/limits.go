package protocol

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Permits shares the handler calls of a queue among instances, when the queue has a limit for the whole
// cluster; see lua/permit.lua. A permit is the right to one handler call.
type Permits struct {
	db    *redisdb.DB
	queue string
}

// Permits returns the permits of a queue.
func (c *Client) Permits(queue string) Permits { return Permits{c.DB(), queue} }

// PermitRequest asks for permits for an instance.
type PermitRequest struct {
	Instance string
	Number   int64 // grows by one with each request of the instance; a request that is sent again keeps it
	Limit    int   // permits of the whole cluster
	Has      int   // the larger number of the instance's permits and calls; before the answer it has at most so many calls
	Wanted   int   // calls that the instance could have at once
	Kept     int   // calls that it has had of late; it keeps permits for them unless others lack permits
}

// PermitGrant is the answer to a PermitRequest.
type PermitGrant struct {
	May    int  // calls that the instance may have from now on; if it has more, no call may begin until fewer run
	Before int  // instances that get a permit before this instance, if it has none
	Lack   bool // other instances want more permits than they have
	Askers int  // instances that want permits
}

// PermitTurn returns how long an instance keeps a permit while a limit is smaller than the number of instances that
// want a permit. It is long enough that at most 400 permits a second change hands.
func PermitTurn(limit int) time.Duration {
	return max(500*time.Millisecond, time.Duration(limit)*time.Second/400)
}

// Ask returns how many calls the instance may have from now on. After an error it must not have more than it
// had. lease.ErrGone is final.
func (p Permits) Ask(ctx context.Context, r PermitRequest) (PermitGrant, error) {
	reply, err := p.db.Run(ctx, p.db.Scripts.Permit, []string{p.db.Keys.Permits(p.queue), p.db.Keys.Permitsx(p.queue), p.db.Keys.Leases()},
		r.Instance, r.Number, r.Limit, r.Has, r.Wanted, r.Kept, PermitTurn(r.Limit).Microseconds())
	if err != nil {
		return PermitGrant{}, fmt.Errorf("permits of queue %q: %w", p.queue, readLimitError(err))
	}
	n := redisdb.List(reply)
	if len(n) != 4 || redisdb.Int(n[0]) < 0 {
		return PermitGrant{}, fmt.Errorf("permits of queue %q: the script answered %v instead of four numbers", p.queue, reply)
	}
	return PermitGrant{
		May: int(redisdb.Int(n[0])), Before: int(redisdb.Int(n[1])), Lack: redisdb.Int(n[2]) == 1, Askers: int(redisdb.Int(n[3]))}, nil
}

// Holders returns how many permits each instance holds. It includes instances that have died since the last
// request.
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

// RateGrant is the answer to TakeRate.
type RateGrant struct {
	Batches int           // how many of the batches may be handed out, from the first on
	Left    int           // ids that the rate allows beyond these batches
	Wait    time.Duration // until the next batch may ask, or the next id if all batches may be handed out
}

// RatesAtOnce is the maximum number of batches in a request.
const RatesAtOnce = 200

// RateAgain is the maximum time before a batch that had to wait asks again. Smaller batches wait behind it only as
// long as it keeps asking.
const RateAgain = 10 * time.Second

// TakeRate uses up a part of a queue's rate for batches with the given numbers of ids, in their order. After an error
// the part may be used up all the same.
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
		return RateGrant{}, fmt.Errorf("rate of queue %q: the script answered %v for %d batches", queue, reply, len(batches))
	}
	return RateGrant{Batches: int(n[0]), Left: int(n[1]), Wait: time.Duration(n[2]) * time.Microsecond}, nil
}
