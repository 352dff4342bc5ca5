package marshal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Dump returns the bytes that Ruby's Marshal.dump writes for the value that JSON.parse reads from the text. It writes nil,
// booleans, integers, floats, UTF-8 strings, arrays, and hashes with strings as keys. It refuses text that is not JSON, and
// text that Ruby does not read as it stands: halves of surrogate pairs, numbers beyond the range of floats, and nesting
// deeper than 100.
func Dump(text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("no JSON: it is not UTF-8")
	}
	if !json.Valid(text) {
		return nil, errors.New("no JSON")
	}
	d := dumper{tokens: json.NewDecoder(bytes.NewReader(text)), out: []byte{4, 8}, keys: map[string]int{}, floats: map[float64]int{}}
	d.tokens.UseNumber()
	if err := d.writeValue(0); err != nil {
		return nil, err
	}
	if _, err := d.tokens.Token(); err != io.EOF { //nolint:errorlint // as it documents
		return nil, errors.New("no JSON: something follows the value")
	}
	if d.replaced > bytes.Count(text, []byte("\uFFFD"))+strings.Count(strings.ToLower(string(text)), `\ufffd`) {
		return nil, errors.New("a string has half of a surrogate pair")
	}
	return d.out, nil
}

// dumper writes a value. Ruby numbers every object except nil, booleans and small integers. It writes an object that occurs
// again by its number. Most floats and equal keys are the same object, unless Ruby's garbage collector came between.
type dumper struct {
	tokens   *json.Decoder
	out      []byte
	objects  int
	keys     map[string]int
	floats   map[float64]int
	encoded  bool // the symbol E was written
	replaced int  // characters U+FFFD
}

// writeValue writes the next value of the JSON. It counts the objects as Ruby numbers them for links.
func (d *dumper) writeValue(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("it is nested deeper than %d", maxDepth)
	}
	token, err := d.tokens.Token()
	if err != nil {
		return err
	}
	switch v := token.(type) {
	case nil:
		d.out = append(d.out, '0')
	case bool:
		d.out = append(d.out, map[bool]byte{true: 'T', false: 'F'}[v])
	case string:
		d.objects++
		d.writeString(v)
	case json.Number:
		return d.writeNumber(v.String())
	case json.Delim:
		d.objects++
		if v == '[' {
			return d.writeArray(depth)
		}
		return d.writeHash(depth)
	}
	return nil
}

// writeArray writes the elements, then inserts their count before them.
func (d *dumper) writeArray(depth int) error {
	before, n := d.nested(), 0
	for ; d.tokens.More(); n++ {
		if err := d.writeValue(depth + 1); err != nil {
			return err
		}
	}
	d.counted(before, '[', n)
	_, err := d.tokens.Token()
	return err
}

// writeHash writes the pairs. As in Ruby, a key that occurs twice has the place of the first and the value of the last.
func (d *dumper) writeHash(depth int) error {
	type pair struct {
		key   string
		value json.RawMessage
	}
	var pairs []pair
	at := map[string]int{}
	for d.tokens.More() {
		token, err := d.tokens.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		var value json.RawMessage
		if err := d.tokens.Decode(&value); err != nil {
			return err
		}
		if i, twice := at[key]; twice {
			pairs[i].value = value
			continue
		}
		at[key] = len(pairs)
		pairs = append(pairs, pair{key, value})
	}
	if _, err := d.tokens.Token(); err != nil {
		return err
	}
	before := d.nested()
	outer := d.tokens
	for _, p := range pairs {
		d.writeKey(p.key)
		d.tokens = json.NewDecoder(bytes.NewReader(p.value))
		d.tokens.UseNumber()
		if err := d.writeValue(depth + 1); err != nil {
			return err
		}
	}
	d.tokens = outer
	d.counted(before, '{', len(pairs))
	return nil
}

func (d *dumper) nested() []byte {
	before := d.out
	d.out = nil
	return before
}

func (d *dumper) counted(before []byte, kind byte, n int) {
	d.out = append(appendLong(append(before, kind), int64(n)), d.out...)
}

// writeKey writes a key of a hash. Ruby has equal keys once.
func (d *dumper) writeKey(key string) {
	if n, ok := d.keys[key]; ok {
		d.writeLink(n)
		return
	}
	d.keys[key] = d.objects
	d.objects++
	d.writeString(key)
}

func (d *dumper) writeLink(n int) { d.out = appendLong(append(d.out, '@'), int64(n)) }

// writeString writes a UTF-8 string. The first string of a dump has the symbol E, and all later strings link to it.
func (d *dumper) writeString(s string) {
	d.replaced += strings.Count(s, "\uFFFD")
	d.out = append(appendLong(append(d.out, 'I', '"'), int64(len(s))), s...)
	d.out = appendLong(d.out, 1)
	if d.encoded {
		d.out = append(d.out, ';', 0, 'T')
		return
	}
	d.encoded = true
	d.out = append(d.out, ':', 6, 'E', 'T')
}

// writeNumber writes a number with a point or an exponent as a float, and any other number as an integer. Ruby dumps
// integers of more than 31 bits as objects.
func (d *dumper) writeNumber(text string) error {
	if strings.ContainsAny(text, ".eE") {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("the number %.40s is none of Ruby's floats", text)
		}
		d.writeFloat(x)
		return nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= -1<<30 && n < 1<<30 {
		d.out = appendLong(append(d.out, 'i'), n)
		return nil
	}
	if len(text) > 2*maxInteger {
		return fmt.Errorf("an integer of %d digits", len(text))
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok {
		return fmt.Errorf("the number %.40s", text)
	}
	d.objects++
	sign := byte('+')
	if n.Sign() < 0 {
		sign = '-'
	}
	digits := n.Bytes()
	if len(digits)%2 == 1 {
		digits = append([]byte{0}, digits...)
	}
	d.out = appendLong(append(d.out, 'l', sign), int64(len(digits)/2))
	for i := len(digits) - 1; i >= 0; i-- {
		d.out = append(d.out, digits[i])
	}
	return nil
}

// writeFloat writes a float. Equal floats are one object if Ruby stores them in the pointer.
func (d *dumper) writeFloat(x float64) {
	bits := math.Float64bits(x)
	if high := bits >> 60 & 7; bits == 0 || (high == 3 || high == 4) && bits != 0x3000000000000000 {
		if n, ok := d.floats[x]; ok {
			d.writeLink(n)
			return
		}
		d.floats[x] = d.objects
	}
	d.objects++
	text := floatText(x)
	d.out = append(appendLong(append(d.out, 'f'), int64(len(text))), text...)
}

// floatText returns a float as Marshal writes it: the shortest digits that read as the same float, without a point if there
// is no fraction.
func floatText(x float64) string {
	if x == 0 {
		return map[bool]string{false: "0", true: "-0"}[math.Signbit(x)]
	}
	sign := ""
	if x < 0 {
		sign = "-"
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(math.Abs(x), 'e', -1, 64), "e")
	digits := strings.Replace(mantissa, ".", "", 1)
	power, _ := strconv.Atoi(exponent)
	point := power + 1 // how many digits stand before it
	switch {
	case point < -3 || point > len(digits):
		text := digits[:1]
		if len(digits) > 1 {
			text += "." + digits[1:]
		}
		return sign + text + "e" + strconv.Itoa(power)
	case point == len(digits):
		return sign + digits
	case point > 0:
		return sign + digits[:point] + "." + digits[point:]
	}
	return sign + "0." + strings.Repeat("0", -point) + digits
}

// appendLong appends an integer of at most 32 bits as Marshal writes lengths.
func appendLong(out []byte, n int64) []byte {
	switch {
	case n == 0:
		return append(out, 0)
	case n > 0 && n < 123:
		return append(out, byte(n+5))
	case n < 0 && n > -124:
		return append(out, byte(n-5))
	}
	var bytes []byte
	rest := n
	for rest != 0 && rest != -1 {
		bytes = append(bytes, byte(rest))
		rest >>= 8
	}
	size := int64(len(bytes))
	if n < 0 {
		size = -size
	}
	return append(append(out, byte(size)), bytes...)
}
