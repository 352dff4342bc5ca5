package queue

import (
	"context"

	"github.com/lowkiq/lowkiq"
)

// hashWalk goes through all ids that have a record, in the order in which Redis stores them.
type hashWalk struct {
	q     *Queue
	place *spot
	count int // how many to ask for: few if records are large
	seen  map[string]bool
}

// hashStep is how many bytes of records one step of a scan should touch.
const hashStep = 256 << 10

func (w *hashWalk) next(ctx context.Context, n int) ([]candidate, error) {
	for len(w.place.Rest) == 0 && w.place.Shard < len(w.q.shards) {
		if err := w.step(ctx, n); err != nil {
			return nil, err
		}
	}
	found := make([]candidate, min(len(w.place.Rest), max(n, 1))) // a cursor may bring more
	for i, id := range w.place.Rest[:len(found)] {
		found[i] = candidate{shard: lowkiq.ShardOf(string(id), w.q.Shards), id: string(id)}
	}
	return found, nil
}

func (w *hashWalk) step(ctx context.Context, n int) error {
	s, from := w.q.shards[w.place.Shard], w.place.Hash
	if from == "" {
		from = "0"
	}
	reply, err := w.q.c.run(ctx, w.q.c.db.Scripts.Scan, []string{s.keys.Jobs}, from, min(w.count, max(n, 16)))
	if err != nil {
		return err
	}
	next, bytes, ids := decodeScan(reply)
	if len(ids) > 0 {
		w.count = min(maxPage, max(16, hashStep*len(ids)/max(1, bytes)))
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	for _, id := range ids {
		if !w.seen[id] {
			w.seen[id] = true
			w.place.Rest = append(w.place.Rest, []byte(id))
		}
	}
	w.place.Hash = next
	if next == "0" {
		w.place.Hash = ""
		w.place.Shard++
	}
	return nil
}

func decodeScan(reply any) (next string, bytes int, ids []string) {
	r, _ := reply.([]any)
	if len(r) < 2 {
		return "0", 0, nil
	}
	next, _ = r[0].(string)
	size, _ := r[1].(int64)
	for _, v := range r[2:] {
		id, _ := v.(string)
		ids = append(ids, id)
	}
	return next, int(size), ids
}

func (w *hashWalk) advance(candidate) { w.place.Rest = w.place.Rest[1:] }

func (w *hashWalk) ended() bool { return len(w.place.Rest) == 0 && w.place.Shard >= len(w.q.shards) }
