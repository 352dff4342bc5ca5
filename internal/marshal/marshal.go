// Package marshal answers one question: what does a payload that Ruby dumped say, as JSON? [Dump] is the way back.
//
// It reads what Ruby's Marshal.dump writes (format 4.8), and only plain data: nil, booleans, integers,
// finite floats, strings and symbols, arrays and hashes. What JSON cannot say is refused by name and
// place, and never guessed at: objects, subclasses, instance variables, text in other encodings, NaN,
// what holds itself, what is nested deeper than 100.
//
// The text is what Ruby's JSON.generate (2.6) writes for the value that Marshal.load gives. Data that is
// cut short or made up costs no more than its length justifies: nothing is allocated for a length that
// is only announced, and the text of what is linked again and again is limited, see [MaxText].
package marshal

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq/internal/clip"
)

// MaxText is how long the text of n bytes may become. A dump says once what is used often (a hash that
// an array holds a thousand times), and a made-up one of 100 bytes could say a text of terabytes so.
func MaxText(n int) int { return 64<<10 + 64*n }

// maxDepth is how deep arrays and hashes may lie in each other, as in Ruby's JSON.
const maxDepth = 100

// maxInteger is how many bytes an integer may have: digits of a longer one cost too much to compute.
const maxInteger = 1 << 10

// Error says why data is refused, and where.
type Error struct {
	Why    string // "an object of Time"
	Place  string // [3]."when", "" for the outermost value
	Offset int    // of the byte in the data
}

func (e *Error) Error() string {
	if e.Place == "" {
		return fmt.Sprintf("%s (byte %d)", e.Why, e.Offset)
	}
	return fmt.Sprintf("%s, at %s (byte %d)", e.Why, e.Place, e.Offset)
}

// Loss is a set of what the JSON text does not say any more.
type Loss uint8

// The kinds of loss.
const (
	LostSymbol   Loss = 1 << iota // a symbol is a string
	LostKey                       // a key was an integer, nil or a boolean, and is a string
	LostEncoding                  // a string was marked as another encoding than UTF-8; its text is ASCII
	LostDefault                   // a hash had a default value
	LostInteger                   // an integer is exact in the text, but not for readers that take numbers for float64
)

var lossNames = []string{"symbol", "key", "encoding", "default", "integer_over_53_bits"}

// Names are the kinds of loss in the set.
func (l Loss) Names() []string {
	var names []string
	for i, name := range lossNames {
		if l&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

func (l Loss) String() string { return strings.Join(l.Names(), ", ") }

// JSON returns the JSON text of a dump, and what the text does not say of it. An error is an [*Error].
func JSON(data []byte) ([]byte, Loss, error) {
	if !bytes.HasPrefix(data, []byte{4, 8}) {
		return nil, 0, &Error{Why: fmt.Sprintf("data that does not begin as Marshal 4.8 does, with the bytes 04 08, but with % x", data[:min(8, len(data))])}
	}
	d := &decoder{data: data, at: 2, most: MaxText(len(data)), text: make([]byte, 0, len(data)+16)}
	d.objects, d.symbols, d.keys, d.path = d.room.objects[:0], d.room.symbols[:0], d.room.keys[:0], d.room.path[:0]
	_, err := d.value()
	if err == nil && d.at < len(data) {
		err = d.refuse(d.at, fmt.Sprintf("%d bytes after the end of the value", len(data)-d.at))
	}
	if err != nil {
		return nil, 0, err
	}
	return d.text, d.loss, nil
}

// step is a way into an array or a hash.
type step struct {
	index int
	key   []byte // JSON text, nil in an array
}

// place is the way to where the decoder is.
func (d *decoder) place() string {
	var b strings.Builder
	for _, s := range d.path {
		switch {
		case s.key == nil:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case len(s.key) > 100:
			b.WriteString("." + strings.ToValidUTF8(string(s.key[:100]), "") + `…"`)
		default:
			b.WriteString("." + string(s.key))
		}
		if b.Len() > 1000 {
			return b.String() + "…"
		}
	}
	return strings.TrimPrefix(b.String(), ".")
}

func (d *decoder) refuse(at int, why string) error {
	return &Error{Why: why, Place: d.place(), Offset: at}
}

// shown is a name from the data, fit for a message.
func shown(name []byte) string {
	text := clip.Text(string(name), 100)
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	if text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, odd) {
		text = strconv.QuoteToGraphic(text)
	}
	if len(name) > 100 {
		text += "…"
	}
	return text
}
