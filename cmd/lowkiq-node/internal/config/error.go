package config

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Error says what is wrong with one setting, and where it was made.
type Error struct {
	Place   string // "node.yaml:4:13", "LOWKIQ_NODE_TTL" or "--http"
	Key     string // "queues.history.shards"; may be empty
	Reason  string // what is wrong and what would be right
	Excerpt string // the lines of the file around it; may be empty
}

// Error is one line, and the excerpt below it.
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

// origin is where a value came from: a token of the file, or a variable or flag.
type origin struct {
	name string
	tok  *token.Token
}

// fault makes an error. The secrets of values among args are hidden; an error among them
// has hidden its own.
func (o origin) fault(key, format string, args ...any) *Error {
	for i, arg := range args {
		switch value := arg.(type) {
		case string:
			args[i] = mask(value)
		case ast.Node:
			args[i] = mask(value.String())
		}
	}
	e := &Error{Place: o.place(), Key: key, Reason: fmt.Sprintf(format, args...)}
	if o.tok != nil {
		e.Excerpt = excerpt(o.tok)
	}
	return e
}

// place is the origin in a word.
func (o origin) place() string {
	if o.tok == nil {
		return o.name
	}
	return fmt.Sprintf("%s:%d:%d", o.name, o.tok.Position.Line, o.tok.Position.Column)
}

// excerpt is the source around a token, as the YAML library draws it, without
// secrets.
func excerpt(tok *token.Token) string {
	text := yaml.FormatError(&yaml.SyntaxError{Token: tok}, false, true)
	_, lines, _ := strings.Cut(text, "\n")
	return secret.ReplaceAllString(mask(strings.TrimRight(lines, "\n ")), "$1***")
}

// What may be secret in a line. Each hides too much rather than too little.
var (
	login    = regexp.MustCompile(`(://[^:@\n]*):.*@`)                                // of a URL
	query    = regexp.MustCompile(`(redis[a-z+]*://[^?\n]*)\?[^\s"']*`)               // may have sentinel_password
	schemale = regexp.MustCompile(`(\bredis["']?:\s*["']?).*@`)                       // a URL without its scheme
	secret   = regexp.MustCompile(`(?i)((?:token|password|secret|key)["']?:\s+)\S.*`) // a secret where a file's name belongs
)

// mask hides the secrets of URLs in a text that people and logs will see.
func mask(text string) string {
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
