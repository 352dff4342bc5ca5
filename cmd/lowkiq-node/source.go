package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/lowkiq/lowkiq/cmd/internal/config"
	"github.com/lowkiq/lowkiq/cmd/internal/connect"
	"github.com/lowkiq/lowkiq/web/auth"
)

// warnOfPasswords logs a warning if the configuration file contains a password and every user of the host may read it.
func warnOfPasswords(file string, cfg *config.Config, log *slog.Logger) {
	secret := connect.HasPassword(cfg.Redis) && cfg.InFile("redis")
	for name, q := range cfg.Queues {
		secret = secret || connect.HasPassword(q.Handler.HTTP) && cfg.InFile("queues."+name+".handler.http")
	}
	if secret {
		warnOfReaders(file, log)
	}
}

// nodeTokens reads the tokens that callers of the node's API must send. Each kind comes from its file, or from the variable
// with the name of that key without _FILE. LOWKIQ_TOKEN, which commands send, is the admin token of a node without a
// configured admin token.
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
			return tokens, cfg.ErrorAt(kind.key, fmt.Errorf("%s is set as well; set only one of them", variable))
		case value != "":
			if *kind.into = []string{value}; tokens.Validate() != nil {
				return tokens, &config.Error{Place: variable, Reason: tokens.Validate().Error()}
			}
		case kind.file != "":
			if *kind.into, err = readTokens(kind.file); err != nil {
				return tokens, cfg.ErrorAt(kind.key, err)
			}
			warnOfReaders(kind.file, log)
			if err := tokens.Validate(); err != nil {
				return tokens, cfg.ErrorAt(kind.key, fmt.Errorf("%s: %w", kind.file, err))
			}
		}
	}
	if token := getenv("LOWKIQ_TOKEN"); token != "" && len(tokens.Admin) == 0 {
		tokens.Admin = []string{token}
		if err := tokens.Validate(); err != nil {
			return tokens, &config.Error{Place: "LOWKIQ_TOKEN", Reason: err.Error()}
		}
	}
	return tokens, nil
}

// readTokens reads a token, or two during a rotation, the new token first.
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
		return nil, fmt.Errorf("%s has %d lines; it must have one token, or two during a rotation, the new one first", file, len(tokens))
	}
	return tokens, nil
}

// commandToken returns the token that a command sends: the newest token of the file, or LOWKIQ_TOKEN without a file.
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

// warnOfReaders logs a warning if every user of the host may read a secret. It refuses nothing, because container runtimes
// mount secrets in this way.
func warnOfReaders(file string, log *slog.Logger) {
	if file == "" {
		return
	}
	info, err := os.Stat(file)
	if err != nil {
		return
	}
	mode := info.Mode().Perm()
	if mode&0o022 != 0 {
		log.Warn("users other than its owner may write a secret and so choose it: chmod go-w it", "file", file, "mode", mode.String())
	}
	if mode&0o004 != 0 && !mountedForUs(file, info) {
		log.Warn("every user of this host may read a secret: chmod o-r it", "file", file, "mode", mode.String())
	}
}
