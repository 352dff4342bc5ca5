package config

import (
	"encoding/json"
	"time"

	"github.com/lowkiq/lowkiq/internal/certs"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue/recurring"
	"github.com/lowkiq/lowkiq/web"
)

// Config is the file. A nil pointer, an empty string or list was not configured.
//
// The tags min and max bound a value, oneof lists the words that are allowed.
type Config struct {
	Cluster  string            `yaml:"cluster"`
	Redis    string            `yaml:"redis"`
	RedisTLS RedisTLS          `yaml:"redis_tls"`
	Node     Node              `yaml:"node"`
	Queues   map[string]*Queue `yaml:"queues"`

	Recurring map[string]*Recurring `yaml:"recurring"`

	origins map[string]origin
	name    string // of the file, for messages
}

// Node are the keys of the process.
type Node struct {
	Name            string         `yaml:"name"`
	Concurrency     *int           `yaml:"concurrency" min:"1" max:"100000"`
	TTL             *time.Duration `yaml:"ttl" min:"3s" max:"2m"`
	PollInterval    *time.Duration `yaml:"poll_interval" min:"10ms" max:"1m"`
	ShutdownTimeout *time.Duration `yaml:"shutdown_timeout" min:"1ms" max:"1h"`
	HTTP            string         `yaml:"http"`
	HTTPNames       []string       `yaml:"http_names"`
	RequestMemory   string         `yaml:"request_memory"` // as Size has it
	TokenFile       string         `yaml:"token_file"`     // admin
	PushTokenFile   string         `yaml:"push_token_file"`
	ReadTokenFile   string         `yaml:"read_token_file"`
	Insecure        bool           `yaml:"insecure"`
	AllowEviction   bool           `yaml:"allow_eviction"`

	Bind          string   `yaml:"bind"`      // gossip; Raft listens one port above
	Advertise     string   `yaml:"advertise"` // host
	Join          []string `yaml:"join"`
	Weight        *int     `yaml:"weight" min:"1" max:"1000000"`
	GossipKeyFile string   `yaml:"gossip_key_file"`
	TLS           TLS      `yaml:"tls"`
}

// TLS are PEM files for HTTP and Raft.
type TLS struct {
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	CAFile     string `yaml:"ca_file"`
	ClientAuth string `yaml:"client_auth" oneof:"require,none"`
	PeerName   string `yaml:"peer_name"`
}

// Node are the files as Raft takes them.
func (t TLS) Node() node.TLS {
	return node.TLS{CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile, PeerName: t.PeerName}
}

// Web are the files as the API takes them.
func (t TLS) Web() web.TLS {
	return web.TLS{CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile, ClientAuth: t.ClientAuth == "require"}
}

// RedisTLS are PEM files for rediss:// URLs.
type RedisTLS struct {
	CAFile   string `yaml:"ca_file"`
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
}

// Files are those of a client.
func (t RedisTLS) Files() certs.Files {
	return certs.Files{Cert: t.CertFile, Key: t.KeyFile, CA: t.CAFile}
}

// Queue are the rules for the jobs of one queue.
type Queue struct {
	Shards           *int           `yaml:"shards" min:"1" max:"1000000"`
	BatchSize        *int           `yaml:"batch_size" min:"1" max:"1000"`
	MaxRetryCount    *int           `yaml:"max_retry_count" min:"0" max:"1000000"`
	RetryIn          *RetryIn       `yaml:"retry_in"`
	Handler          Handler        `yaml:"handler"`
	Scheduler        string         `yaml:"scheduler" oneof:"lag,seq"`
	Priority         *int           `yaml:"priority" min:"0" max:"9"`
	Concurrency      *int           `yaml:"concurrency" min:"1" max:"100000"`
	Limit            *Limit         `yaml:"limit"`
	Groups           *Groups        `yaml:"groups"`
	Coalesce         string         `yaml:"coalesce" oneof:"all,latest,once"`
	Debounce         *Debounce      `yaml:"debounce"`
	ShardConcurrency *int           `yaml:"shard_concurrency" min:"1" max:"1000"`
	Prefetch         *int           `yaml:"prefetch" min:"1" max:"1000"`
	HandlerTimeout   *time.Duration `yaml:"handler_timeout" min:"0s" max:"8760h"` // 0 = none
	Exhausted        string         `yaml:"exhausted" oneof:"skip,bury,block"`
	MaxCrashes       *int           `yaml:"max_crashes" min:"0" max:"1000000"` // 0 = never bury; 1 is refused
	State            *time.Duration `yaml:"state" min:"0s" max:"87600h"`       // 0 = for ever; without it handlers keep none
	Journal          *Journal       `yaml:"journal"`
	Morgue           *Morgue        `yaml:"morgue"`
	Expire           *Expire        `yaml:"expire"`
	StuckAfter       *time.Duration `yaml:"stuck_after" min:"0s" max:"8760h"` // 0 = never

	// Of what is pushed, by whomever: kept in the registry.
	MaxPayloadSize string `yaml:"max_payload_size"` // as Size has it
	MaxIDPayloads  *int   `yaml:"max_id_payloads" min:"1" max:"1000000"`
	MaxIDSize      string `yaml:"max_id_size"` // as Size has it
}

// Handler says who does the work: an HTTP endpoint or a child process.
type Handler struct {
	HTTP      string         `yaml:"http"`
	Timeout   *time.Duration `yaml:"timeout" min:"1ms" max:"8760h"`
	Exec      []string       `yaml:"exec"`
	Processes *int           `yaml:"processes" min:"1" max:"10000"`
	Events    []string       `yaml:"events"` // of which it is told: of Events
}

// RetryIn is the delay before the next attempt: either a formula, or a list of delays
// of which the last one repeats.
type RetryIn struct {
	Base   *time.Duration `yaml:"base" min:"0s" max:"8760h"`
	Power  *float64       `yaml:"power" min:"0" max:"10"`
	Jitter *time.Duration `yaml:"jitter" min:"0s" max:"8760h"`
	Delays []time.Duration
}

// Journal says of which runs a line is kept, how many lines, and for how long: one word for Runs, or a mapping. A
// mapping without Runs means all.
type Journal struct {
	Runs string         `yaml:"runs" oneof:"failures,all,none"`
	Keep *int           `yaml:"keep" min:"1" max:"1000000000"` // of the queue
	For  *time.Duration `yaml:"for" min:"1s" max:"87600h"`
}

// Morgue says how many ids of the queue the morgue keeps, and for how long.
type Morgue struct {
	Keep *int           `yaml:"keep" min:"1" max:"1000000000"`
	For  *time.Duration `yaml:"for" min:"1s" max:"87600h"`
}

// Limit bounds what the whole cluster does for the queue.
type Limit struct {
	Concurrency *int   `yaml:"concurrency" min:"1" max:"1000000"`
	Rate        string `yaml:"rate" text:"a rate, 1 to 1000000 in a second, minute or hour, as in 100/s, 5/m or 1/h"`
	Burst       *int   `yaml:"burst" min:"1" max:"1000000"`
}

// Groups bounds the same for the ids of the queue that have the same beginning.
type Groups struct {
	By          string `yaml:"by" text:"what ends the prefix of an id, 1 to 8 bytes, as in \":\""`
	Concurrency *int   `yaml:"concurrency" min:"1" max:"1000000"`
	Rate        string `yaml:"rate" text:"a rate, 1 to 1000000 in a second, minute or hour, as in 100/s, 5/m or 1/h"`
	Burst       *int   `yaml:"burst" min:"1" max:"1000000"`
}

// Debounce puts ids off with each push.
type Debounce struct {
	Quiet *time.Duration `yaml:"quiet" min:"1ms" max:"24h"`
	Most  *time.Duration `yaml:"most" min:"1ms" max:"24h"`
}

// Expire says for how long after it is due a payload is of use, and where it goes then.
type Expire struct {
	After *time.Duration `yaml:"after" min:"1s" max:"8760h"`
	To    string         `yaml:"to" oneof:"morgue,drop"`
}

// Recurring is something that is pushed again and again: see recurring.Spec, which says what is allowed.
type Recurring struct {
	Cron    string            `yaml:"cron"`
	Zone    string            `yaml:"zone"`
	Every   *time.Duration    `yaml:"every" min:"1s" max:"8784h"`
	Offset  *time.Duration    `yaml:"offset" min:"0s" max:"8784h"`
	Jitter  *time.Duration    `yaml:"jitter" min:"0s" max:"8784h"`
	Queue   string            `yaml:"queue"`
	ID      string            `yaml:"id"`
	Payload json.RawMessage   `yaml:"payload"` // any YAML, as JSON
	Header  map[string]string `yaml:"header"`
	Missed  string            `yaml:"missed" oneof:"one,none,all"`
	Backlog *int              `yaml:"backlog" min:"1" max:"1000"`
}

// Spec is the entry as nodes take it.
func (r *Recurring) Spec() recurring.Spec {
	s := recurring.Spec{Cron: r.Cron, Zone: r.Zone, Queue: r.Queue, ID: r.ID, Payload: r.Payload, Header: r.Header, Missed: recurring.Missed(r.Missed)}
	for _, of := range []struct {
		to   *recurring.Duration
		from *time.Duration
	}{{&s.Every, r.Every}, {&s.Offset, r.Offset}, {&s.Jitter, r.Jitter}} {
		if of.from != nil {
			*of.to = recurring.Duration(*of.from)
		}
	}
	if r.Backlog != nil {
		s.Backlog = *r.Backlog
	}
	return s
}

// reserved are the LOWKIQ_* variables that are no keys of the file.
func reserved() []string {
	return []string{"LOWKIQ_CONFIG", "LOWKIQ_URL", "LOWKIQ_FROM", "LOWKIQ_TOKEN", "LOWKIQ_TOKEN_FILE", "LOWKIQ_LOG_LEVEL", "LOWKIQ_USER", "LOWKIQ_GUARD",
		"LOWKIQ_CA", "LOWKIQ_CERT", "LOWKIQ_KEY",
		"LOWKIQ_NODE_TOKEN", "LOWKIQ_NODE_PUSH_TOKEN", "LOWKIQ_NODE_READ_TOKEN"}
}

// DefaultShards is the shard count of a queue that configures none.
const DefaultShards = 16

// ShardCount is what the queue is registered with.
func (q *Queue) ShardCount() int {
	if q.Shards == nil {
		return DefaultShards
	}
	return *q.Shards
}
