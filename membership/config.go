package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Config says how a process takes part. The zero value of a field means its
// default, where one is named.
type Config struct {
	Cluster   string        // gossip of other clusters is dropped; required
	Node      string        // the stable name; required
	Boot      string        // the run of this process, unique for ever; required
	Bind      string        // host:port for TCP and UDP; port 0 picks one; required
	Advertise string        // host:port at which others reach it; "" = Bind
	Join      []string      // host:port of seeds
	TTL       time.Duration // lease ttl, which the timing follows; 0 = 6 s
	// Peers returns host:port of further processes, such as those with a live lease;
	// nil = none.
	Peers func(ctx context.Context) ([]string, error)
	// Keys encrypt the gossip: AES keys of 16, 24 or 32 bytes. The first one encrypts,
	// all of them decrypt. Empty = not encrypted.
	Keys     [][]byte
	Insecure bool // allow a bind beyond loopback without keys
	Meta     Meta // what the process says of itself at first
	Log      *slog.Logger

	transport memberlist.Transport // for tests; nil = the network
}

const (
	defaultTTL = 6 * time.Second
	maxName    = 255 // bytes of a memberlist label
	maxProcess = 200 // bytes of node/boot: a packet holds it twice, or beside a meta
)

func (c Config) withDefaults() Config {
	if c.TTL == 0 {
		c.TTL = defaultTTL
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate names the field that is wrong, and what would be right.
func (c Config) Validate() error {
	switch {
	case c.Cluster == "" || len(c.Cluster) > maxName:
		return fmt.Errorf("membership: Cluster %q: want 1 to %d bytes", c.Cluster, maxName)
	case c.Node == "" || c.Boot == "" || strings.Contains(c.Boot, "/"):
		return fmt.Errorf("membership: Node %q and Boot %q: want both, and no slash in Boot", c.Node, c.Boot)
	case len(c.process()) > maxProcess:
		return fmt.Errorf("membership: Node and Boot have %d bytes with a slash, want at most %d: Node is %.50q…", len(c.process()), maxProcess, c.Node)
	case c.TTL < 0:
		return fmt.Errorf("membership: TTL %s must not be negative", c.TTL)
	}
	for i, key := range c.Keys {
		if err := memberlist.ValidateKey(key); err != nil {
			return fmt.Errorf("membership: key %d has %d bytes, want 16, 24 or 32", i+1, len(key))
		}
	}
	if _, err := c.Meta.encode(); err != nil {
		return fmt.Errorf("membership: %w", err)
	}
	return c.validateAddresses()
}

func (c Config) process() string { return Instance{Node: c.Node, Boot: c.Boot}.process() }

func (c Config) validateAddresses() error {
	host, _, err := splitHostPort(c.Bind)
	if err != nil {
		return fmt.Errorf("membership: Bind: %w", err)
	}
	if c.Advertise != "" {
		if _, _, err := splitHostPort(c.Advertise); err != nil {
			return fmt.Errorf("membership: Advertise: %w", err)
		}
	}
	for _, seed := range c.Join {
		if _, _, err := splitHostPort(seed); err != nil {
			return fmt.Errorf("membership: Join: %w", err)
		}
	}
	if len(c.Keys) == 0 && !c.Insecure && !loopback(host) {
		return fmt.Errorf("membership: Bind %s: refusing to gossip beyond loopback without a key; "+
			"give one, or allow it with insecure", c.Bind)
	}
	return nil
}

func splitHostPort(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q: want host:port: %w", address, err)
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%q: want a port from 0 to 65535", address)
	}
	return host, port, nil
}

// loopback reports whether a bind to host is reached from this machine only. An
// empty host is every interface.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// memberlist returns the library's configuration. All timing follows the ttl: an
// instance that stops answering is probed within two intervals, missed in the third,
// and dead after three to six more unless it objects; with fifteen intervals to a
// ttl that is 0.6 ttl, and leaves 0.2 for gossip and a busy machine.
func (c Config) memberlist() (*memberlist.Config, error) {
	host, port, err := splitHostPort(c.Bind)
	if err != nil {
		return nil, err
	}
	if host == "localhost" {
		host = "127.0.0.1" // memberlist wants an IP address
	}
	interval := c.TTL / 15
	conf := memberlist.DefaultLANConfig()
	conf.Name, conf.Label = c.process(), c.Cluster
	conf.BindAddr, conf.BindPort, conf.AdvertisePort = host, port, port
	conf.ProbeInterval, conf.ProbeTimeout = interval, interval/2
	conf.GossipInterval = min(200*time.Millisecond, interval/2)
	conf.SuspicionMult, conf.SuspicionMaxTimeoutMult = 3, 2
	conf.TCPTimeout = min(max(c.TTL/3, time.Second), 10*time.Second) // the end of a process may wait for one dial
	conf.GossipToTheDeadTime = 5 * c.TTL
	conf.EnableCompression = false // messages are a few hundred bytes: it costs more than it saves
	conf.Transport = c.transport
	conf.LogOutput = &lineLog{log: c.Log}
	if c.Advertise != "" {
		if conf.AdvertiseAddr, conf.AdvertisePort, err = advertised(c.Advertise); err != nil {
			return nil, err
		}
	}
	if len(c.Keys) > 0 {
		conf.Keyring, err = memberlist.NewKeyring(c.Keys, c.Keys[0])
	}
	return conf, err
}

// advertised resolves host:port: memberlist advertises IP addresses only.
func advertised(address string) (ip string, port int, err error) {
	host, port, err := splitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	found, err := net.LookupIP(host)
	if err != nil {
		return "", 0, fmt.Errorf("advertise %s: %w", address, err)
	}
	if len(found) == 0 {
		return "", 0, errors.New("advertise " + address + ": no address found")
	}
	return found[0].String(), port, nil
}

// lineLog passes the library's log on at debug level, but for what unknown senders send: a process
// that gossips with another key, none, or for another cluster is warned of, as a node with a wrong
// key is one too.
type lineLog struct {
	log *slog.Logger

	mu   sync.Mutex
	said time.Time // the last warning; guarded by mu
	left int       // messages of unknown senders since that no warning tells of; guarded by mu
}

// warnEvery is how often a warning tells of unknown senders, however much they send.
const warnEvery = 30 * time.Second

func (l *lineLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if !strange(text) {
		l.log.Debug("gossip", "line", text)
		return len(line), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.said.IsZero() && time.Since(l.said) < warnEvery {
		l.left++
		return len(line), nil
	}
	l.log.Warn("gossip is refused: the sender has another key, none, or is of another cluster", "line", text, "left_out", l.left)
	l.said, l.left = time.Now(), 0
	return len(line), nil
}

// strange reports whether a line tells of a message that could not be decrypted, or has another
// label.
func strange(line string) bool {
	return strings.Contains(line, "[ERR]") && strings.Contains(line, "from=") && (strings.Contains(line, "crypt") || strings.Contains(line, "label"))
}
