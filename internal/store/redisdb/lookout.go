package redisdb

import (
	"context"
	"errors"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// When a master of a Redis Cluster dies for good, its replica becomes the master of
// its slots. Once a minute go-redis asks where the slots are. It also asks if a server answers that a slot is
// elsewhere. A dead server answers nothing. So after a command that fails, or has no answer for a
// while, the lookout asks the cluster again and again until the address is no longer a master. Then
// it closes the connections to the address. All commands that wait for its answers fail and are
// sent to the new master.

const (
	lookEvery = 250 * time.Millisecond
	// askTimeout bounds the wait for the answer of a server that is asked where the masters are, and
	// suspectTimeout the wait for the answer of a suspect. go-redis asks servers at random, one after the
	// other, and the first may be the dead server. If all servers shared a bound, the dead server would use
	// it up, and the look would bring no answer.
	askTimeout     = 500 * time.Millisecond
	suspectTimeout = 100 * time.Millisecond
	// silence is the time without an answer after which the lookout asks whether a server is still a
	// master. No script takes that long (docs/adr/0010-bounded-scripts-and-pieces.md).
	silence = time.Second
)

// lookout watches the masters of a Redis Cluster. A nil lookout watches nothing.
type lookout struct {
	masters  func(context.Context, func(address string)) // calls the function concurrently for each known master
	links    *links
	patience time.Duration // an address is trusted again after this time without a failure
	closed   chan struct{}

	mu       sync.Mutex
	suspects map[string]time.Time // when each address has failed last; guarded by mu
	looking  bool                 // findMasters runs; guarded by mu
}

// newLookout adds a hook to all connections of a client of go-redis. For a Redis Cluster it returns a
// lookout.
func newLookout(rdb redis.UniversalClient, l *links, timeout time.Duration) *lookout {
	switch client := rdb.(type) {
	case *redis.Client:
		client.AddHook(watchHook{links: l, address: client.Options().Addr})
	case *redis.ClusterClient:
		// A hanging command fails after the timeout. So a dead address fails twice within the
		// patience.
		o := &lookout{masters: mastersOf(client), links: l, patience: 2*timeout + silence, closed: make(chan struct{}), suspects: map[string]time.Time{}}
		client.OnNewNode(func(node *redis.Client) { node.AddHook(watchHook{links: l, lookout: o, address: node.Options().Addr}) })
		return o
	}
	return nil
}

func mastersOf(cluster *redis.ClusterClient) func(context.Context, func(address string)) {
	return func(ctx context.Context, each func(address string)) {
		_ = cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
			each(master.Options().Addr)
			return nil
		}) // an error means that the masters are unknown
	}
}

// watchAnswer suspects an address that does not answer for a while. Call stop after the answer.
func (o *lookout) watchAnswer(address string) (stop func()) {
	if o == nil {
		return func() {}
	}
	timer := time.AfterFunc(silence, func() { o.addSuspect(address) })
	return func() { timer.Stop() }
}

// suspectFailed suspects an address if err means that it was out of reach.
func (o *lookout) suspectFailed(address string, err error) {
	if o != nil && Unreachable(err) {
		o.addSuspect(address)
	}
}

func (o *lookout) addSuspect(address string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.suspects[address] = time.Now()
	if !o.looking {
		o.looking = true
		go o.findMasters()
	}
}

// findMasters asks where the masters are while there are suspects, and closes the connections to
// suspects that are no longer masters.
func (o *lookout) findMasters() {
	for o.hasSuspects() {
		if masters := o.masterAddresses(); len(masters) > 0 {
			o.links.closeOlder(time.Now(), func(address string) bool { return o.isSuspected(address) && !masters[address] })
			o.keepMasters(masters)
		}
		select {
		case <-o.closed:
			return // looking stays true, so no goroutine starts again
		case <-time.After(lookEvery):
		}
	}
}

// hasSuspects forgets suspects that have not failed for a while. Without suspects the goroutine
// ends.
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

// keepMasters stops suspecting servers that are not masters, because no command waits for them.
func (o *lookout) keepMasters(masters map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.suspects, func(address string, _ time.Time) bool { return !masters[address] })
}

func (o *lookout) isSuspected(address string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, is := o.suspects[address]
	return is
}

// looking marks the context of the lookout's requests.
type looking struct{}

// boundQuestion bounds the time of a request of the lookout to a server. It does not bound other
// commands.
func (o *lookout) boundQuestion(ctx context.Context, address string) (context.Context, context.CancelFunc) {
	switch {
	case o == nil || ctx.Value(looking{}) == nil:
		return ctx, func() {}
	case o.isSuspected(address):
		return context.WithTimeout(ctx, suspectTimeout)
	}
	return context.WithTimeout(ctx, askTimeout)
}

// masterAddresses returns the addresses of all masters as a server of the cluster names them. If no
// server answers, it returns the masters that were known before, if any. go-redis uses the new
// addresses from then on.
func (o *lookout) masterAddresses() map[string]bool {
	ctx := context.WithValue(context.Background(), looking{}, true)
	var mu sync.Mutex // guards all
	all := map[string]bool{}
	o.masters(ctx, func(address string) {
		mu.Lock()
		defer mu.Unlock()
		all[address] = true
	})
	return all
}

// close ends the lookout.
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

// namesNodes checks that the answer to CLUSTER SLOTS has an address for each server. An unknown
// address is nil there, and go-redis would return that nil as the answer to every command. A
// missing host name is "?".
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
