package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/config"
	"github.com/lowkiq/lowkiq/web/auth"
)

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
