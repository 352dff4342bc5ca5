package config

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Error says what is wrong with a setting, and where it was set.
type Error struct {
	Place   string // "node.yaml:4:13", "LOWKIQ_NODE_TTL" or "--http"
	Key     string // "queues.history.shards", or ""
	Reason  string // what is wrong and what would be right
	Excerpt string // the lines of the file around it, or ""
}

// Error returns a line of text, with the excerpt below it.
func (e *Error) Error() string {
	text := e.Place + ": "
	if e.Key != "" {
		text += e.Key + ": "
	}
	text += e.Reason
	if e.Excerpt != "" {
		text += "\n" + e.Excerpt
	}
	return text
}

// origin is the place of a value: a token of the file, or the name of a variable or flag.
type origin struct {
	name string
	tok  *token.Token
}

// newError returns an error at the origin. It hides the secrets of values among args. An [Error] among args has hidden its
// own.
func (o origin) newError(key, format string, args ...any) *Error {
	for i, arg := range args {
		switch value := arg.(type) {
		case string:
			args[i] = maskSecrets(value)
		case ast.Node:
			args[i] = maskSecrets(value.String())
		}
	}
	e := &Error{Place: o.place(), Key: key, Reason: fmt.Sprintf(format, args...)}
	if o.tok != nil {
		e.Excerpt = sourceExcerpt(o.tok)
	}
	return e
}

// place returns the origin as a word.
func (o origin) place() string {
	if o.tok == nil {
		return o.name
	}
	return fmt.Sprintf("%s:%d:%d", o.name, o.tok.Position.Line, o.tok.Position.Column)
}

// sourceExcerpt returns the lines around a token as the YAML library draws them, without secrets.
func sourceExcerpt(tok *token.Token) string {
	text := yaml.FormatError(&yaml.SyntaxError{Token: tok}, false, true)
	_, lines, _ := strings.Cut(text, "\n")
	return secret.ReplaceAllString(maskSecrets(strings.TrimRight(lines, "\n ")), "$1***")
}

// Patterns of secrets in a line. Each hides too much rather than too little.
var (
	login    = regexp.MustCompile(`(://[^:@\n]*):.*(?:@|…)`)                          // of a URL, also of a truncated URL
	query    = regexp.MustCompile(`(redis[a-z+]*://[^?\n]*)\?[^\s"']*`)               // it may contain sentinel_password
	schemale = regexp.MustCompile(`(\bredis["']?:\s*["']?).*@`)                       // a URL without its scheme
	secret   = regexp.MustCompile(`(?i)((?:token|password|secret|key)["']?:\s+)\S.*`) // a secret in place of the name of its file
)

// maskSecrets hides the secrets of URLs in a text for people and logs.
func maskSecrets(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, "://") {
			line = query.ReplaceAllString(login.ReplaceAllString(line, "$1:***@"), "$1?***")
		} else {
			line = schemale.ReplaceAllString(line, "$1***@")
		}
		b.WriteString(line)
	}
	return b.String()
}
