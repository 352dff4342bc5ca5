package queue

import "context"

// Glance is what a node looks at again and again, read by one command.
type Glance struct {
	Record    []byte // of the cluster; nil if there is none
	Mark      []byte // of the leader; nil if it is missing
	Instances []Instance
}

// Glance reads the record, the mark and the leases of the instances of an index.
func (c *Client) Glance(ctx context.Context, index []Instance) (Glance, error) {
	keys := []string{c.recordKey(), c.markKey()}
	for _, i := range index {
		keys = append(keys, c.leaseKey(i.Name))
	}
	values, err := c.rdb.MGet(ctx, keys...).Result()
	if err != nil {
		return Glance{}, c.explain("read record, mark and leases", err)
	}
	g := Glance{Record: bytesIn(values[0]), Mark: bytesIn(values[1]), Instances: make([]Instance, len(index))}
	for i, known := range index {
		g.Instances[i] = Instance{Name: known.Name, Identity: known.Identity, Lease: bytesIn(values[i+2])}
	}
	return g, nil
}

// bytesIn is nil for a key that is missing.
func bytesIn(value any) []byte {
	if text, ok := value.(string); ok {
		return []byte(text)
	}
	return nil
}
