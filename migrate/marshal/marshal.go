// Package marshal answers one question: what does a payload that Ruby dumped say, as JSON? [Dump] converts JSON back into a
// dump.
//
// Package marshal reads the output of Ruby's Marshal.dump (format 4.8) if it is plain data: nil, booleans, integers, finite
// floats, strings, symbols, arrays and hashes. It refuses everything that JSON cannot express, with its kind and place, and
// never guesses. So it refuses objects, subclasses, instance variables, text in other encodings, NaN, values that contain
// themselves, and values that are nested deeper than 100.
//
// The text is what Ruby's JSON.generate (2.6) writes for the value that Marshal.load returns. Damaged or forged data costs
// no more than its length justifies. A length that the data only announces allocates nothing, and [MaxText] limits the text
// of objects that are linked many times.
package marshal

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq/internal/text/truncate"
)

// MaxText returns the maximum length of the text for n bytes of data. A dump contains an object once even if an array holds
// it a thousand times. Without the limit, 100 bytes of forged data could stand for terabytes of text.
func MaxText(n int) int { return 64<<10 + 64*n }

// maxDepth is the maximum nesting of arrays and hashes, as in Ruby's JSON.
const maxDepth = 100

// maxInteger is the maximum size of an integer in bytes. The digits of a longer integer cost too much to compute.
const maxInteger = 1 << 10

// Error says why data is refused, and where.
type Error struct {
	Why    string // "an object of Time"
	Place  string // [3]."when", "" for the outermost value
	Offset int    // the index of the byte in the data
	Long   bool   // the text would be longer than asked for
}

func (e *Error) Error() string {
	if e.Place == "" {
		return fmt.Sprintf("%s (byte %d)", e.Why, e.Offset)
	}
	return fmt.Sprintf("%s, at %s (byte %d)", e.Why, e.Place, e.Offset)
}

// Loss is a set of details that the JSON text does not express.
type Loss uint8

// The kinds of loss.
const (
	LostSymbol   Loss = 1 << iota // a symbol became a string
	LostKey                       // a key that was an integer, nil or a boolean became a string
	LostEncoding                  // an ASCII string was marked with another encoding than UTF-8
	LostDefault                   // a hash had a default value
	LostInteger                   // an integer is exact in the text, but not for readers that use float64
)

var lossNames = []string{"symbol", "key", "encoding", "default", "integer_over_53_bits"}

// Names returns the kinds of loss in the set.
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

// JSON returns the JSON text of a dump, of at most most bytes, and the details that the text does not express.
// An error is an [*Error].
func JSON(data []byte, most int) ([]byte, Loss, error) {
	if !bytes.HasPrefix(data, []byte{4, 8}) {
		return nil, 0, &Error{Why: fmt.Sprintf("data that does not begin as Marshal 4.8 does, with the bytes 04 08, but with % x",
			data[:min(8, len(data))])}
	}
	d := &decoder{data: data, at: 2, most: min(MaxText(len(data)), most), limit: most}
	d.text = make([]byte, 0, min(len(data), most)+16)
	d.objects, d.symbols, d.keys, d.path = d.room.objects[:0], d.room.symbols[:0], d.room.keys[:0], d.room.path[:0]
	_, err := d.decodeValue()
	if err == nil && d.at < len(data) {
		err = d.refuse(d.at, fmt.Sprintf("%d bytes after the end of the value", len(data)-d.at))
	}
	if err != nil {
		return nil, 0, err
	}
	return d.text, d.loss, nil
}

// step is an index of an array, or a key of a hash, on the way to a value.
type step struct {
	index int
	key   []byte // JSON text, nil in an array
}

// place returns the way to the value that the decoder reads.
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

// refuse returns the error that refuses the data.
func (d *decoder) refuse(at int, why string) error {
	return &Error{Why: why, Place: d.place(), Offset: at}
}

// quoteName returns a name from the data in a form that fits a message.
func quoteName(name []byte) string {
	text := truncate.Text(string(name), 100)
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	if text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, odd) {
		text = strconv.QuoteToGraphic(text)
	}
	if len(name) > 100 {
		text += "…"
	}
	return text
}
