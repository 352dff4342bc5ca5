package protocol

import (
	"context"
	"fmt"
	"time"
)

// TrimMorgue deletes ids from the shard's morgue: the ids buried first beyond keep ids, and the ids whose last
// burial is longer ago than age. A keep or age of 0 is no bound. It returns the number of deleted payloads.
func (c *Claim) TrimMorgue(ctx context.Context, keep int, age time.Duration) (payloads int, err error) {
	most, since := "", ""
	if keep > 0 {
		most = fmt.Sprint(keep)
	}
	if age > 0 {
		since = fmt.Sprint(age.Microseconds())
	}
	for more := most != "" || since != ""; more; {
		reply, err := c.Run(ctx, c.registry.db.Scripts.MorgueTrim, c.Instance, c.fence, most, since)
		if err != nil {
			return payloads, fmt.Errorf("shard %s: %w", c.Shard, err)
		}
		r, ok := twoNumbers(reply)
		if !ok {
			return payloads, fmt.Errorf("shard %s: morgue_trim answered %v instead of two numbers", c.Shard, reply)
		}
		payloads += r[0]
		more = r[1] == 1
	}
	return payloads, nil
}
