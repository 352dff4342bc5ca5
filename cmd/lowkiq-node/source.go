package main

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
)

// source are the flags that say where the configuration comes from and override it.
type source struct {
	Config  string `short:"c" env:"LOWKIQ_CONFIG" placeholder:"FILE" help:"Configuration file."`
	Redis   string `key:"redis" placeholder:"URL" help:"Redis: redis://, rediss://, redis+sentinel:// or redis+cluster://. LOWKIQ_REDIS likewise: give a password there or in the file, as ps shows flags to everybody."`
	Cluster string `key:"cluster" placeholder:"NAME" help:"Name of the cluster; those that share a Redis are kept apart by it. LOWKIQ_CLUSTER likewise."`
}

// overrides are the flags that were given and set a key of the file, which their tag names.
func overrides(ctx *kong.Context) (given []config.Override) {
	for _, flag := range ctx.Flags() {
		key := flag.Tag.Get("key")
		if key == "" || !flag.Set {
			continue
		}
		value := reflect.Indirect(flag.Target).Interface()
		if texts, ok := value.([]string); ok { // as the file would have it
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

// load reads the file, the environment and the flags.
func (s *source) load(ctx *kong.Context) (*config.Config, error) {
	in := config.Input{Name: "configuration", Env: os.Environ(), Flags: overrides(ctx)}
	if s.Config != "" {
		text, err := os.ReadFile(s.Config)
		if err != nil {
			return nil, fail(exitUsage, "configuration: %w", err)
		}
		in.Name, in.File = s.Config, text
	}
	cfg, err := config.Load(in)
	if err != nil {
		return nil, err
	}
	if hasPassword(s.Redis) {
		fmt.Fprintln(os.Stderr, "lowkiq-node: warning: every user of this host sees the password of --redis in the list of processes: "+
			"set LOWKIQ_REDIS, or redis in the file of --config")
	}
	return cfg, nil
}

// hasPassword reports whether a URL holds one, for a server or its sentinels.
func hasPassword(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	_, password := u.User.Password()
	return password || u.Query().Has("sentinel_password")
}

// warnOfPasswords tells of a configuration file with a password that everybody on the host may read.
func (s *source) warnOfPasswords(cfg *config.Config, log *slog.Logger) {
	secret := hasPassword(cfg.Redis) && cfg.InFile("redis")
	for name, q := range cfg.Queues {
		secret = secret || hasPassword(q.Handler.HTTP) && cfg.InFile("queues."+name+".handler.http")
	}
	if secret {
		warnOfReaders(s.Config, log)
	}
}
