package main

import (
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
)

// source are the flags that say where the configuration comes from and override it.
type source struct {
	Config  string `short:"c" env:"LOWKIQ_CONFIG" placeholder:"FILE" help:"Configuration file."`
	Redis   string `placeholder:"URL" help:"Redis: redis://, rediss://, redis+sentinel:// or redis+cluster://. LOWKIQ_REDIS likewise: give a password there or in the file, as ps shows flags to everybody."`
	Cluster string `placeholder:"NAME" help:"Name of the cluster; those that share a Redis are kept apart by it. LOWKIQ_CLUSTER likewise."`
}

func (s *source) overrides() []config.Override {
	return given(config.Override{Source: "--redis", Key: "redis", Value: s.Redis},
		config.Override{Source: "--cluster", Key: "cluster", Value: s.Cluster})
}

// given drops the flags that were not.
func given(all ...config.Override) []config.Override {
	kept := all[:0]
	for _, o := range all {
		if o.Value != "" {
			kept = append(kept, o)
		}
	}
	return kept
}

func number(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}

// truth of a flag that may undo what the file says.
func truth(flag *bool) string {
	if flag == nil {
		return ""
	}
	return strconv.FormatBool(*flag)
}

// list writes texts as the file would.
func list(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	for i := range texts {
		texts[i] = strconv.Quote(texts[i])
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

func yes(flag bool) string {
	if flag {
		return "true"
	}
	return ""
}

// load reads the file, the environment and the flags.
func (s *source) load(more ...config.Override) (*config.Config, error) {
	in := config.Input{Name: "configuration", Env: os.Environ(), Flags: append(s.overrides(), more...)}
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
