// Package connect answers one question: how does a command find its Redis, and a queue in it?
//
// [Flags] are the flags that name the configuration file and override it. [Flags.LoadConfig] reads all of it. [OpenClient]
// connects, and [FindQueue] finds the queue or registers it.
package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/config"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/internal/network/certs"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Flags name the configuration file and override it.
type Flags struct {
	Config  string `short:"c" env:"LOWKIQ_CONFIG" placeholder:"FILE" help:"Configuration file."`
	Redis   string `key:"redis" placeholder:"URL" help:"Redis: redis://, rediss://, redis+sentinel:// or redis+cluster://. LOWKIQ_REDIS sets it as well. Give a password there or in the file, because ps shows flags to everybody."`
	Cluster string `key:"cluster" placeholder:"NAME" help:"Name of the cluster. It keeps apart clusters that share a Redis. LOWKIQ_CLUSTER sets it as well."`
}

// flagOverrides returns the given flags that set a key of the file. The tag of a flag names its key.
func flagOverrides(ctx *kong.Context) (given []config.Override) {
	for _, flag := range ctx.Flags() {
		key := flag.Tag.Get("key")
		if key == "" || !flag.Set {
			continue
		}
		value := reflect.Indirect(flag.Target).Interface()
		if texts, ok := value.([]string); ok { // as in the file
			quoted := make([]string, len(texts))
			for i := range texts {
				quoted[i] = strconv.Quote(texts[i])
			}
			value = "[" + strings.Join(quoted, ", ") + "]"
		}
		if text := fmt.Sprint(value); text != "" {
			given = append(given, config.Override{Source: "--" + flag.Name, Key: key, Value: text})
		}
	}
	return given
}

// LoadConfig reads the file, the environment and the flags.
func (f *Flags) LoadConfig(ctx *kong.Context) (*config.Config, error) {
	in := config.Input{Name: "configuration", Env: os.Environ(), Flags: flagOverrides(ctx)}
	if f.Config != "" {
		text, err := os.ReadFile(f.Config)
		if err != nil {
			return nil, exit.Fail(exit.Usage, "configuration: %w", err)
		}
		in.Name, in.File = f.Config, text
	}
	cfg, err := config.Load(in)
	if err != nil {
		return nil, err
	}
	if HasPassword(f.Redis) {
		fmt.Fprintf(os.Stderr, "%s: warning: every user of this host sees the password of --redis in the list of processes: "+
			"set LOWKIQ_REDIS, or redis in the file of --config\n", ctx.Model.Name)
	}
	return cfg, nil
}

// HasPassword reports whether a URL contains a password of a server or of its sentinels.
func HasPassword(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	_, password := u.User.Password()
	return password || u.Query().Has("sentinel_password")
}

// RedisTLS reads the files of redis_tls. It returns nil if there are none.
func RedisTLS(cfg *config.Config, log *slog.Logger) (*tls.Config, error) {
	if cfg.RedisTLS == (config.RedisTLS{}) {
		return nil, nil
	}
	store, err := certs.Open(cfg.RedisTLS.Files(), log)
	if err != nil {
		return nil, cfg.ErrorAt("redis_tls", err)
	}
	return store.ClientConfig(), nil
}

// OpenClient connects to the Redis of a configuration.
func OpenClient(cfg *config.Config) (*protocol.Client, error) {
	trust, err := RedisTLS(cfg, nil)
	if err != nil {
		return nil, err
	}
	client, err := protocol.Open(protocol.Config{Redis: cfg.Redis, Cluster: cfg.Cluster, TLS: trust})
	if err != nil {
		return nil, exit.Fail(exit.Usage, "%w", err)
	}
	return client, nil
}

// FindQueue finds a queue in the registry. It registers the queue if shards is not 0 or the configuration has its shard
// count. It refuses a count that differs from the registered count, unless the queue had it before it was resharded.
func FindQueue(ctx context.Context, client *protocol.Client, cfg *config.Config, name string, shards int) (q *protocol.Queue, err error) {
	if rules := cfg.Queues[name]; rules != nil {
		if err := client.SetRules(name, protocol.PushRules{Push: rules.Push}); err != nil {
			return nil, exit.Fail(exit.Usage, "%w", err)
		}
		if shards == 0 {
			shards = rules.ShardCount()
		}
	}
	if err := protocol.CheckNotReserved(name); err != nil {
		return nil, exit.WithCode(exit.Usage, err)
	}
	if shards == 0 {
		q, err = client.Queue(ctx, name)
	} else {
		q, err = client.Register(ctx, lowkiq.Queue{Name: name, Shards: shards})
		if err == nil && q.Shards != shards {
			fmt.Fprintf(os.Stderr, "warning: %s\n", q.FormerCountWarning(shards))
		}
	}
	if err == nil {
		err = q.Pushable()
	}
	return q, withExitCode(err)
}

// withExitCode gives the error of a queue that cannot be used its exit code.
func withExitCode(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case protocol.Transient(err), protocol.Denied(err):
		return exit.WithCode(exit.Unreachable, err)
	}
	return exit.WithCode(exit.Usage, err)
}
