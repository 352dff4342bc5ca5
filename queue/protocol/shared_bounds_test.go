package protocol_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/lowkiq/lowkiq/queue/protocol"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// fill pushes n jobs to each shard, with ids of a length and payloads of a size, and returns their
// ids by shard.
func (m *many) fill(n, length, size int) (ids [][]string) {
	m.t.Helper()
	ids = make([][]string, len(m.claims))
	var jobs []lowkiq.Push
	for i, full := 0, 0; full < len(ids); i++ {
		id := fmt.Sprint("id", i)
		id += strings.Repeat("-", max(0, length-len(id)))
		shard := lowkiq.ShardOf(id, len(ids))
		if len(ids[shard]) == n {
			continue
		}
		if ids[shard] = append(ids[shard], id); len(ids[shard]) == n {
			full++
		}
		if jobs = append(jobs, job(id, strings.Repeat("x", size))); len(jobs) == 2000 {
			m.push(jobs...)
			jobs = nil
		}
	}
	m.push(jobs...)
	return ids
}

// together makes all shards send a request, and then releases the shared requests.
func (m *many) together(ask func(i int, claim *Claim) error) {
	m.t.Helper()
	release := m.q.Shard(0).HoldShared(m.ctx)
	var all sync.WaitGroup
	var alone atomic.Int64 // a shard with much to do waits for no other
	for i, claim := range m.claims {
		all.Go(func() {
			if err := ask(i, claim); err != nil {
				m.t.Error(err)
			}
			alone.Add(1)
		})
	}
	until(m.t, "all wait", func() bool { return m.q.Shard(0).WaitingShared(m.ctx)+int(alone.Load()) == len(m.claims) })
	release()
	all.Wait()
}

// TestSharedWorkIsBounded checks that a shared request for many shards has the same bound as a script for one shard,
// because Redis serves no other client meanwhile.
func TestSharedWorkIsBounded(t *testing.T) {
	tier.All(t)
	t.Parallel()
	b := &backend{url: redistest.Start(t).URL()}
	for name, c := range map[string]struct {
		ids, length, size int
		parked            int // bytes of what is pushed to each id in flight
		named             int // acks name so many ids; 0: all that is left
	}{
		"long flights":      {ids: 1000, length: 200, size: 10},
		"flights that fit":  {ids: 31, length: 500, size: 10},
		"some of long ones": {ids: 1000, length: 200, size: 10, named: 60},
		"large jobs":        {ids: 40, length: 20, size: 16000},
		"parked":            {ids: 7, length: 20, size: 2000, parked: 3000},
		"more parked":       {ids: 60, length: 20, size: 2000, parked: 3000, named: 60},
		"nothing is left":   {ids: 40, length: 20, size: 100},
	} {
		t.Run(name, func(t *testing.T) {
			client := b.open(t, func(cfg *Config) { cfg.Cluster = strings.ReplaceAll(name, " ", "-") })
			client.ShareAlways()
			m := newMany(t, client, 64)
			ids := m.fill(c.ids, c.length, c.size)
			counted(m.c)
			open := make([]Acks, len(ids))
			for round := range 3 {
				m.together(func(i int, claim *Claim) error {
					p, err := claim.Pop(m.ctx, PopRequest{IDs: 1000, Bytes: 1 << 20, MaxCrashes: 3})
					open[i] = Acks{Flight: p.Flight, Rest: c.named == 0}
					for _, j := range p.Jobs {
						open[i].IDs = append(open[i].IDs, j.ID)
					}
					if c.named > 0 {
						open[i].IDs = reversed(open[i].IDs)[:min(c.named, len(p.Jobs))]
					}
					return err
				})
				if c.parked > 0 && round == 0 {
					m.fillAgain(ids, c.parked)
				}
				m.together(func(i int, claim *Claim) error {
					_, err := claim.Ack(m.ctx, open[i])
					return err
				})
			}
			if seen := m.costs(); seen["pop_each"][0] < 1000 {
				t.Errorf("got the work of %v, want that of shared scripts that do something", seen)
			}
		})
	}
}

// fillAgain pushes a payload of a size to each of the ids.
func (m *many) fillAgain(ids [][]string, size int) {
	m.t.Helper()
	for _, of := range ids {
		jobs := make([]lowkiq.Push, len(of))
		for i, id := range of {
			jobs[i] = job(id, strings.Repeat("y", size))
		}
		m.push(jobs...)
	}
}
