package queue

import (
	"context"
	"fmt"
	"time"
)

// TrimMorgue forgets what the shard's morgue holds beyond keep ids, those buried first, and ids whose last burial is
// longer ago than age. 0: any number, however long ago. It returns how many payloads that were.
func (c *Claim) TrimMorgue(ctx context.Context, keep int, age time.Duration) (payloads int, err error) {
	most, since := "", ""
	if keep > 0 {
		most = fmt.Sprint(keep)
	}
	if age > 0 {
		since = fmt.Sprint(age.Microseconds())
	}
	for more := most != "" || since != ""; more; {
		reply, err := c.Run(ctx, c.registry.db.Scripts.TrimMorgue, c.Instance, c.fence, most, since)
		if err != nil {
			return payloads, fmt.Errorf("shard %s: %w", c.Shard, err)
		}
		r, ok := twoNumbers(reply)
		if !ok {
			return payloads, fmt.Errorf("shard %s: morgue_trim answered %v, want two numbers", c.Shard, reply)
		}
		payloads += r[0]
		more = r[1] == 1
	}
	return payloads, nil
}
