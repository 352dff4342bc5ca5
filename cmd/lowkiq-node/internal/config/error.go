package config

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
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

func (o origin) fault(key, format string, args ...any) *Error {
	e := &Error{Place: o.name, Key: key, Reason: fmt.Sprintf(format, args...)}
	if o.tok != nil {
		e.Place = fmt.Sprintf("%s:%d:%d", o.name, o.tok.Position.Line, o.tok.Position.Column)
		e.Excerpt = excerpt(o.tok)
	}
	return e
}

var password = regexp.MustCompile(`(://[^/@\s:]*):\S*@`)

// excerpt is the source around a token, as the YAML library draws it, without
// passwords.
func excerpt(tok *token.Token) string {
	text := yaml.FormatError(&yaml.SyntaxError{Token: tok}, false, true)
	_, lines, _ := strings.Cut(text, "\n")
	return password.ReplaceAllString(strings.TrimRight(lines, "\n "), "$1:***@")
}
