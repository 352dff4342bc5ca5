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
	"github.com/lowkiq/lowkiq/web/auth"
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

// warnOfPasswords tells of a configuration file with a password that everybody on the host may
// read.
func (s *source) warnOfPasswords(cfg *config.Config, log *slog.Logger) {
	secret := hasPassword(cfg.Redis) && cfg.InFile("redis")
	for name, q := range cfg.Queues {
		secret = secret || hasPassword(q.Handler.HTTP) && cfg.InFile("queues."+name+".handler.http")
	}
	if secret {
		warnOfReaders(s.Config, log)
	}
}

// nodeTokens reads what callers of the node's API must send: each kind from its file, or
// from the variable of the file's name without _FILE. LOWKIQ_TOKEN, which commands send,
// is the admin token of a node for which none is configured.
func nodeTokens(cfg *config.Config, getenv func(string) string, log *slog.Logger) (tokens auth.Tokens, err error) {
	for _, kind := range []struct {
		key, file string
		into      *[]string
	}{
		{"node.token_file", cfg.Node.TokenFile, &tokens.Admin},
		{"node.push_token_file", cfg.Node.PushTokenFile, &tokens.Push},
		{"node.read_token_file", cfg.Node.ReadTokenFile, &tokens.Read},
	} {
		variable := strings.TrimSuffix(config.EnvName(kind.key), "_FILE")
		value := getenv(variable)
		switch {
		case kind.file != "" && value != "":
			return tokens, cfg.Fault(kind.key, fmt.Errorf("%s is set as well: want one of them", variable))
		case value != "":
			*kind.into = []string{value}
		case kind.file != "":
			if *kind.into, err = readTokens(kind.file); err != nil {
				return tokens, cfg.Fault(kind.key, err)
			}
			warnOfReaders(kind.file, log)
		}
	}
	if token := getenv("LOWKIQ_TOKEN"); token != "" && len(tokens.Admin) == 0 {
		tokens.Admin = []string{token}
	}
	if err := tokens.Validate(); err != nil {
		return tokens, cfg.Fault("node", err)
	}
	return tokens, nil
}

// readTokens reads one token, or two while they are rotated: the new one first.
func readTokens(file string) (tokens []string, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			tokens = append(tokens, line)
		}
	}
	switch {
	case len(tokens) == 0:
		return nil, fmt.Errorf("%s is empty", file)
	case len(tokens) > 2:
		return nil, fmt.Errorf("%s has %d lines, want one token, or two while they are rotated, the new one first", file, len(tokens))
	}
	return tokens, nil
}

// commandToken is what a command sends: the newest of a file, else LOWKIQ_TOKEN.
func commandToken(file string) (string, error) {
	if file == "" {
		return os.Getenv("LOWKIQ_TOKEN"), nil
	}
	tokens, err := readTokens(file)
	if err != nil {
		return "", err
	}
	return tokens[0], nil
}

// warnOfReaders tells of a secret that everybody on the host may read. It does not
// refuse: container runtimes mount secrets so.
func warnOfReaders(file string, log *slog.Logger) {
	if file == "" {
		return
	}
	info, err := os.Stat(file)
	if err != nil {
		return
	}
	if mode := info.Mode().Perm(); mode&0o004 != 0 {
		log.Warn("every user of this host may read a secret: chmod o-r it", "file", file, "mode", mode.String())
	}
}
