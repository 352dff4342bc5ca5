package queue

import (
	"context"

	"github.com/lowkiq/lowkiq/internal/redisdb"
)

// Glance is what a node looks at again and again, read by one command.
type Glance struct {
	Record    []byte // of the cluster; nil if there is none
	Mark      []byte // of the leader; nil if it is missing
	Instances []Instance
}

// Glance reads the record, the mark and the leases of the instances of an index.
func (c *Client) Glance(ctx context.Context, index []Instance) (Glance, error) {
	mget := []any{"MGET", c.db.Keys.Record(), c.db.Keys.Leader()}
	for _, i := range index {
		mget = append(mget, c.db.Keys.Lease(i.Name))
	}
	reply, err := c.db.Do(ctx, "read record, mark and leases", mget...)
	if err != nil {
		return Glance{}, err
	}
	values := redisdb.List(reply)
	g := Glance{Record: redisdb.Bytes(values[0]), Mark: redisdb.Bytes(values[1]), Instances: make([]Instance, len(index))}
	for i, known := range index {
		g.Instances[i] = Instance{Name: known.Name, Identity: known.Identity, Lease: redisdb.Bytes(values[i+2])}
	}
	return g, nil
}
