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

	"github.com/lowkiq/lowkiq/internal/process/condition"
)

// Config says how a process takes part. A zero field means its default, if the field names a default.
type Config struct {
	Cluster   string        // gossip of other clusters is dropped; required
	Node      string        // stable name; required
	Boot      string        // id of this run of the process, unique for ever; required
	Bind      string        // host:port for TCP and UDP; port 0 picks a free port; required
	Advertise string        // host:port where others reach this process; default Bind
	Join      []string      // host:port of seeds
	TTL       time.Duration // ttl of leases, the base of all timing; default 6 s
	// Peers returns host:port of further processes, for example those with a live lease. It may be nil.
	Peers func(ctx context.Context) ([]string, error)
	// Keys encrypt the gossip. They are AES keys of 16, 24 or 32 bytes. The first key encrypts, and
	// all of them decrypt. Without keys the gossip is not encrypted.
	Keys     [][]byte
	Insecure bool // allow a bind beyond loopback without keys
	Meta     Meta // the first Meta of this process
	Log      *slog.Logger

	transport memberlist.Transport // for tests; nil for the network
}

const (
	defaultTTL = 6 * time.Second
	maxName    = 255 // bytes of a memberlist label
	maxProcess = 200 // bytes of node/boot; a packet has it twice, or once beside a meta
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

// Validate returns an error that names the first wrong field and the values that it may have.
func (c Config) Validate() error {
	switch {
	case c.Cluster == "" || len(c.Cluster) > maxName:
		return fmt.Errorf("membership: Cluster %q must have 1 to %d bytes", c.Cluster, maxName)
	case c.Node == "" || c.Boot == "" || strings.Contains(c.Boot, "/"):
		return fmt.Errorf("membership: Node %q and Boot %q must both be set, and Boot must have no slash", c.Node, c.Boot)
	case len(c.memberName()) > maxProcess:
		return fmt.Errorf("membership: Node and Boot have %d bytes with a slash and must have at most %d; Node is %.50q…", len(c.memberName()), maxProcess, c.Node)
	case c.TTL < 0:
		return fmt.Errorf("membership: TTL %s must not be negative", c.TTL)
	}
	for i, key := range c.Keys {
		if err := memberlist.ValidateKey(key); err != nil {
			return fmt.Errorf("membership: key %d has %d bytes and must have 16, 24 or 32", i+1, len(key))
		}
	}
	if _, err := c.Meta.encodeMeta(); err != nil {
		return fmt.Errorf("membership: %w", err)
	}
	return c.validateAddresses()
}

func (c Config) memberName() string { return Instance{Node: c.Node, Boot: c.Boot}.memberName() }

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
	if len(c.Keys) == 0 && !c.Insecure && !isLoopback(host) {
		return fmt.Errorf("membership: Bind %s: refusing to gossip beyond loopback without a key; "+
			"give one, or allow it with insecure", c.Bind)
	}
	return nil
}

func splitHostPort(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q must be host:port: %w", address, err)
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, fmt.Errorf("%q must have a port from 0 to 65535", address)
	}
	return host, port, nil
}

// isLoopback reports whether a bind to host is reached only from this machine. An empty host stands for every interface.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// memberlistConfig returns memberlist's configuration. All timing follows the ttl, because a death must be known before the
// lease of the dead process runs out. A process that stops answering is probed within two probe intervals and missed in the
// third. It counts as dead three to six intervals later, unless it objects. So a death is noticed after nine of the ttl's
// fifteen intervals at most, which is 0.6 ttl. Another 0.2 ttl is left for the spreading of the news and for a busy machine.
func (c Config) memberlistConfig() (*memberlist.Config, error) {
	host, port, err := splitHostPort(c.Bind)
	if err != nil {
		return nil, err
	}
	if host == "localhost" {
		host = "127.0.0.1" // memberlist accepts only IP addresses
	}
	interval := c.TTL / 15
	conf := memberlist.DefaultLANConfig()
	conf.Name, conf.Label = c.memberName(), c.Cluster
	conf.BindAddr, conf.BindPort, conf.AdvertisePort = host, port, port
	conf.ProbeInterval, conf.ProbeTimeout = interval, interval/2
	conf.GossipInterval = min(200*time.Millisecond, interval/2)
	conf.SuspicionMult, conf.SuspicionMaxTimeoutMult = 3, 2
	conf.TCPTimeout = min(max(c.TTL/3, time.Second), 10*time.Second) // the end of a process may wait for one dial
	conf.GossipToTheDeadTime = 5 * c.TTL
	conf.EnableCompression = false // it costs more than it saves for messages of a few hundred bytes
	conf.Transport = c.transport
	conf.LogOutput = &lineLog{log: c.Log}
	if c.Advertise != "" {
		if conf.AdvertiseAddr, conf.AdvertisePort, err = resolveAdvertised(c.Advertise); err != nil {
			return nil, err
		}
	}
	if len(c.Keys) > 0 {
		conf.Keyring, err = memberlist.NewKeyring(c.Keys, c.Keys[0])
	}
	return conf, err
}

// resolveAdvertised resolves host:port, because memberlist advertises only IP addresses.
func resolveAdvertised(address string) (ip string, port int, err error) {
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

// lineLog passes memberlist's log on at debug level. It warns about messages of a process that gossips with another key,
// without a key, or for another cluster. Such a process may be a node of this cluster with a wrong key.
type lineLog struct {
	log *slog.Logger

	mu        sync.Mutex
	strangers condition.Condition // guarded by mu
}

// warnFirst is the time between the first two warnings, however much unknown senders send.
const warnFirst = 30 * time.Second

// boot is the time when the process began.
var boot = time.Now()

func (l *lineLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if !isUnexpected(text) {
		l.log.Debug("gossip", "line", text)
		return len(line), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if left, ok := l.strangers.See(time.Since(boot), warnFirst); ok {
		l.log.Warn("gossip is refused, because its sender has another key, no key, or another cluster", "line", text, "left_out", left)
	}
	return len(line), nil
}

// isUnexpected reports whether a line is about a message that could not be decrypted, or that has
// another label. A message that ended too early says nothing about its sender's key.
func isUnexpected(line string) bool {
	for _, cut := range []string{"EOF", "truncated", "timeout", "reset by peer", "closed network connection", "broken pipe"} {
		if strings.Contains(line, cut) {
			return false
		}
	}
	return strings.Contains(line, "[ERR]") && strings.Contains(line, "from=") && (strings.Contains(line, "crypt") || strings.Contains(line, "label"))
}
