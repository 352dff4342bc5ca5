package redisdb

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// When a master of a Redis Cluster dies for good, another server is the master of its slots as soon as its replica is
// promoted. go-redis asks where slots are once in a minute, and when a server answers that they are elsewhere; a dead one
// answers nothing. So after a command that fails, or has no answer for a while, the cluster is asked again and again until
// the address is no master any more, and then all that waits for an answer of it fails, to be sent to the new master.

const (
	lookEvery   = 250 * time.Millisecond
	lookTimeout = 500 * time.Millisecond // the first server that is asked may be the dead one
	// silence is for how long a master may owe an answer before the cluster is asked whether it is one. No script takes
	// so long (docs/adr/0010-bounded-scripts-and-pieces.md).
	silence = time.Second
)

// lookout watches over the masters of a Redis Cluster. A nil one watches nothing.
type lookout struct {
	cluster  *redis.ClusterClient
	links    *links
	patience time.Duration // an address that has not failed for so long is trusted again
	closed   chan struct{}

	mu       sync.Mutex
	suspects map[string]time.Time // by address: when it has failed last; guarded by mu
	looking  bool                 // there is a goroutine; guarded by mu
}

// watch sees all connections of a client of go-redis, and begins to look out in a Redis Cluster.
func watch(rdb redis.UniversalClient, l *links, timeout time.Duration) *lookout {
	switch client := rdb.(type) {
	case *redis.Client:
		client.AddHook(watched{links: l, address: client.Options().Addr})
	case *redis.ClusterClient:
		// A command that hangs fails after the timeout, so that an address which is dead fails twice within the patience.
		o := &lookout{cluster: client, links: l, patience: 2*timeout + silence, closed: make(chan struct{}), suspects: map[string]time.Time{}}
		client.OnNewNode(func(node *redis.Client) { node.AddHook(watched{links: l, lookout: o, address: node.Options().Addr}) })
		return o
	}
	return nil
}

// expect suspects an address that does not answer for a while. The answer stops that.
func (o *lookout) expect(address string) (stop func()) {
	if o == nil {
		return func() {}
	}
	timer := time.AfterFunc(silence, func() { o.suspect(address) })
	return func() { timer.Stop() }
}

// failed suspects an address if err says that it was out of reach.
func (o *lookout) failed(address string, err error) {
	if o != nil && Unreachable(err) {
		o.suspect(address)
	}
}

func (o *lookout) suspect(address string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.suspects[address] = time.Now()
	if !o.looking {
		o.looking = true
		go o.look()
	}
}

// look asks where the masters are for as long as there are suspects.
func (o *lookout) look() {
	for o.hasSuspects() {
		if masters := o.masters(); len(masters) > 0 {
			o.links.cut(time.Now(), func(address string) bool { return o.suspected(address) && !masters[address] })
		}
		select {
		case <-o.closed:
			return // looking stays true: nobody looks again
		case <-time.After(lookEvery):
		}
	}
}

// hasSuspects forgets those that have not failed for a while. Without any, nobody looks.
func (o *lookout) hasSuspects() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for address, failed := range o.suspects {
		if time.Since(failed) > o.patience {
			delete(o.suspects, address)
		}
	}
	o.looking = len(o.suspects) > 0
	return o.looking
}

func (o *lookout) suspected(address string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, is := o.suspects[address]
	return is
}

// masters are the addresses of all masters, as a server of the cluster says, or as they were known if none does; none if
// they never were. go-redis uses them from here on.
func (o *lookout) masters() map[string]bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	var mu sync.Mutex // guards all: it is called for all masters at once
	all := map[string]bool{}
	_ = o.cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all[master.Options().Addr] = true
		return nil
	}) // an error means that nothing is known
	return all
}

// close ends the looking.
func (o *lookout) close() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-o.closed:
	default:
		close(o.closed)
	}
}

var errNameless = errors.New("redis: the cluster does not say at which addresses its servers are: set cluster-preferred-endpoint-type " +
	"of each server to ip, or to hostname and cluster-announce-hostname to a name that clients resolve")

// namesNodes looks whether the answer to CLUSTER SLOTS has an address for each server. One that is unknown is nil there,
// which go-redis would give as the answer to every command; a host name that is missing is "?".
func namesNodes(slots *redis.ClusterSlotsCmd, err error) error {
	if errors.Is(err, redis.Nil) {
		return errNameless
	}
	for _, slot := range slots.Val() {
		for _, node := range slot.Nodes {
			if host, _, _ := net.SplitHostPort(node.Addr); host == "?" {
				return errNameless
			}
		}
	}
	return err
}
