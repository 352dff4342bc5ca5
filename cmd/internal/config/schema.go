package config

import (
	"time"

	"github.com/lowkiq/lowkiq/internal/network/certs"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// Config is the content of the file. A nil pointer, and an empty string or list, mean that the key was not set.
//
// Package bounds reads the tags that bound values.
type Config struct {
	Cluster  string            `yaml:"cluster"`
	Redis    string            `yaml:"redis"`
	RedisTLS RedisTLS          `yaml:"redis_tls"`
	Node     Node              `yaml:"node"`
	Queues   map[string]*Queue `yaml:"queues"`

	Recurring map[string]*recurring.Spec `yaml:"recurring"`

	origins map[string]origin
	name    string // the name of the file, for errors
}

// Node has the keys of the process.
type Node struct {
	Name            string         `yaml:"name"`
	Concurrency     *int           `yaml:"concurrency" min:"1" max:"100000"`
	TTL             *time.Duration `yaml:"ttl" min:"3s" max:"2m"`
	PollInterval    *time.Duration `yaml:"poll_interval" min:"10ms" max:"1m"`
	ShutdownTimeout *time.Duration `yaml:"shutdown_timeout" min:"1ms" max:"1h"`
	HTTP            string         `yaml:"http"`
	HTTPNames       []string       `yaml:"http_names"`
	RequestMemory   int            `yaml:"request_memory" min:"1MiB" max:"1024GiB"`
	TokenFile       string         `yaml:"token_file"` // the file of the admin token
	PushTokenFile   string         `yaml:"push_token_file"`
	ReadTokenFile   string         `yaml:"read_token_file"`
	Insecure        bool           `yaml:"insecure"`
	AllowEviction   bool           `yaml:"allow_eviction"`

	Bind          string   `yaml:"bind"`      // gossip; Raft listens one port above
	Advertise     string   `yaml:"advertise"` // host
	Join          []string `yaml:"join"`
	Weight        *int     `yaml:"weight" min:"1" max:"1000000"`
	GossipKeyFile string   `yaml:"gossip_key_file"`
	Of            *int     `yaml:"of" min:"1" max:"10000"` // number of static nodes
	Number        *int     `yaml:"number" min:"0" max:"9999"`
	TLS           TLS      `yaml:"tls"`
}

// TLS names the PEM files for HTTP and Raft.
type TLS struct {
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	CAFile     string `yaml:"ca_file"`
	ClientAuth string `yaml:"client_auth" oneof:"require,none"`
	PeerName   string `yaml:"peer_name"`
}

// Files returns the files of a server and of a peer.
func (t TLS) Files() certs.Files {
	return certs.Files{Cert: t.CertFile, Key: t.KeyFile, CA: t.CAFile}
}

// RequiresClientCerts reports whether the API asks its clients for certificates.
func (t TLS) RequiresClientCerts() bool { return t.ClientAuth == "require" }

// RedisTLS names the PEM files for rediss:// URLs.
type RedisTLS struct {
	CAFile   string `yaml:"ca_file"`
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
}

// Files returns the files of a client.
func (t RedisTLS) Files() certs.Files {
	return certs.Files{Cert: t.CertFile, Key: t.KeyFile, CA: t.CAFile}
}

// Queue has the keys of a queue: its shards, its handler, and its rules, which package rules defines.
type Queue struct {
	Shards  *int    `yaml:"shards" min:"1" max:"10000"`
	Handler Handler `yaml:"handler"`
	rules.Rules
}

// Handler names the handler of a queue: an HTTP endpoint or a child process.
type Handler struct {
	HTTP      string         `yaml:"http"`
	Timeout   *time.Duration `yaml:"timeout" min:"1ms" max:"8760h"`
	Exec      []string       `yaml:"exec"`
	Processes *int           `yaml:"processes" min:"1" max:"10000"`
	Events    []string       `yaml:"events"` // the events that the handler gets
}

// reservedVariables returns the LOWKIQ_* variables that are not keys of the file.
func reservedVariables() []string {
	return []string{"LOWKIQ_CONFIG", "LOWKIQ_URL", "LOWKIQ_FROM", "LOWKIQ_TOKEN", "LOWKIQ_TOKEN_FILE", "LOWKIQ_LOG_LEVEL", "LOWKIQ_USER", "LOWKIQ_GUARD",
		"LOWKIQ_CA", "LOWKIQ_CERT", "LOWKIQ_KEY",
		"LOWKIQ_NODE_TOKEN", "LOWKIQ_NODE_PUSH_TOKEN", "LOWKIQ_NODE_READ_TOKEN"}
}

// DefaultShards is the shard count of a queue without the key shards.
const DefaultShards = 16

// ShardCount returns the queue's shard count for its registration.
func (q *Queue) ShardCount() int {
	if q.Shards == nil {
		return DefaultShards
	}
	return *q.Shards
}
