package queue

import (
	"context"
	"crypto/tls"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/events"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Config names the Redis and the cluster of nodes that a client uses. The zero value of a field is its
// default.
type Config struct {
	// Redis is the URL of the Redis that stores the jobs. Default redis://127.0.0.1:6379/0.
	//
	//	redis://[user:password@]host:port/db
	//	redis+sentinel://[user:password@]host:port,host:port/master[/db][?sentinel_user=…&sentinel_password=…]
	//	redis+cluster://[user:password@]host:port,host:port
	//
	// The scheme rediss instead of redis means TLS, with the sentinels as well. The login before the hosts
	// is for Redis. Sentinels that need a login have their own, in the query.
	Redis string
	// Cluster separates the keys of clusters that share a Redis. Default "default".
	Cluster string
	// TLS overrides the TLS settings of a rediss:// URL: TLS 1.2, the system's authorities, no client
	// certificate. Without a ServerName each server is verified by its dialled address. The URL has this
	// address, or a cluster or the sentinels announce it. With a ServerName all servers and sentinels must have
	// that name.
	TLS *tls.Config
	// Timeout of a command, and of dialling. Default 5 s.
	Timeout time.Duration
	// PoolSize is the number of connections per Redis node. Default 10 per CPU, or 5 with redis+cluster.
	PoolSize int
	// Middlewares wrap this client's pushes to any queue, the first outermost. They wrap the middlewares of
	// a single queue (PushRules).
	Middlewares []Middleware
}

// Client pushes jobs to the queues of a cluster. It is safe for concurrent use.
type Client struct {
	protocol *protocol.Client
	told     sync.Map // registrations with a former number of shards
}

// Open validates cfg and returns a client. It does not connect to Redis; [Client.Check] does, and so does the first
// push.
func Open(cfg Config) (*Client, error) {
	c, err := protocol.Open(protocol.Config(cfg))
	if err != nil {
		return nil, err
	}
	return &Client{protocol: c}, nil
}

// Close closes the connections and ends waiting calls with ErrClosed. It may be called twice. It first adds the
// pushes of the last ten seconds to the figures of the day, which takes at most four seconds if Redis does
// not answer.
func (c *Client) Close() error { return c.protocol.Close() }

// Check connects to Redis, reads its properties and loads the scripts. It fails if Redis is out of reach or too
// old, if it may evict jobs and allowEviction is false, or if the user lacks a permission. It asks every
// master of a cluster, and with Sentinel the master and every sentinel that answers.
func (c *Client) Check(ctx context.Context, allowEviction bool) error {
	_, err := c.protocol.Check(ctx, allowEviction)
	return err
}

// Register returns a queue and registers it at its first use, with the codec and the limits of the client's rules
// for it (SetRules). If the registered queue has another shard count, the error is lowkiq.ErrShardCount, because
// the jobs are in the shards of that count. If the queue had this count before a reshard, Register logs a warning once
// (slog.Default) and returns the queue with its present count. Codec and limits of a registered queue stay as they are. A
// deleted queue is registered anew. Register refuses a queue that is being deleted, and names that begin with "lowkiq.",
// which belong to lowkiq.
func (c *Client) Register(ctx context.Context, q lowkiq.Queue) (*Queue, error) {
	registered, err := c.protocol.Register(ctx, q)
	if err == nil && registered.FormerCountWarning(q.Shards) != "" {
		if _, told := c.told.LoadOrStore(q, nil); !told {
			slog.Warn(registered.FormerCountWarning(q.Shards))
		}
	}
	return newQueue(registered, err)
}

// Queue returns a registered queue. If there is no such queue, the error is lowkiq.ErrUnknownQueue and lists the
// known names.
func (c *Client) Queue(ctx context.Context, name string) (*Queue, error) {
	return newQueue(c.protocol.Queue(ctx, name))
}

// Events yields the events of the cluster from now on, until ctx or the loop ends: ends of handler calls,
// recovered jobs, changes. An event comes at most once, and missed events are reported as missed; see package
// events. Nodes send nothing while nobody listens.
func (c *Client) Events(ctx context.Context, f events.Filter) iter.Seq[events.Event] {
	return events.Listen(ctx, c.protocol.DB(), f)
}

// Protocol returns the client of the protocol of nodes, over the same connections. Packages that inspect a
// cluster take it, such as queue/audit. It ends with this client.
func (c *Client) Protocol() *protocol.Client { return c.protocol }

// Queue is a registered queue. It is safe for concurrent use. Pushes and calls go on when the queue is resharded, but Shards
// stays the number at the time when the Queue was opened.
type Queue struct {
	lowkiq.Queue
	protocol *protocol.Queue
}

func newQueue(q *protocol.Queue, err error) (*Queue, error) {
	if err != nil {
		return nil, err
	}
	return &Queue{q.Queue, q}, nil
}

// Protocol returns the queue as nodes see it. Packages that look into its shards take it, such as queue/browse.
func (q *Queue) Protocol() *protocol.Queue { return q.protocol.Latest() }
