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

// Dump is what Ruby's Marshal.dump writes for the value that its JSON.parse reads in the text: nil, booleans, integers, floats,
// UTF-8 strings, arrays, and hashes with strings as keys. What is no JSON is refused, and so is what Ruby does not
// read as it stands: halves of surrogate pairs, numbers beyond those of floats, what is nested deeper than 100.
func Dump(text []byte) ([]byte, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("no JSON: it is not UTF-8")
	}
	if !json.Valid(text) {
		return nil, errors.New("no JSON")
	}
	d := dumper{tokens: json.NewDecoder(bytes.NewReader(text)), out: []byte{4, 8}, keys: map[string]int{}, floats: map[float64]int{}}
	d.tokens.UseNumber()
	if err := d.value(0); err != nil {
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

// dumper writes a value. Ruby numbers what it writes but for nil, booleans and small integers, and writes
// what is the same object by its number: most floats, and keys that are equal, unless its garbage collector came between.
type dumper struct {
	tokens   *json.Decoder
	out      []byte
	objects  int
	keys     map[string]int
	floats   map[float64]int
	encoded  bool // the symbol E was written
	replaced int  // characters U+FFFD
}

func (d *dumper) value(depth int) error {
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
		d.text(v)
	case json.Number:
		return d.number(v.String())
	case json.Delim:
		d.objects++
		if v == '[' {
			return d.array(depth)
		}
		return d.hash(depth)
	}
	return nil
}

// array writes the elements, and then their count before them.
func (d *dumper) array(depth int) error {
	before, n := d.nested(), 0
	for ; d.tokens.More(); n++ {
		if err := d.value(depth + 1); err != nil {
			return err
		}
	}
	d.counted(before, '[', n)
	_, err := d.tokens.Token()
	return err
}

// hash writes pairs. Of equal keys the place of the first and the value of the last hold, as in Ruby.
func (d *dumper) hash(depth int) error {
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
		d.key(p.key)
		d.tokens = json.NewDecoder(bytes.NewReader(p.value))
		d.tokens.UseNumber()
		if err := d.value(depth + 1); err != nil {
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

// key writes a key of a hash. Ruby keeps equal ones once.
func (d *dumper) key(key string) {
	if n, ok := d.keys[key]; ok {
		d.link(n)
		return
	}
	d.keys[key] = d.objects
	d.objects++
	d.text(key)
}

func (d *dumper) link(n int) { d.out = appendLong(append(d.out, '@'), int64(n)) }

func (d *dumper) text(s string) {
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

func (d *dumper) number(text string) error {
	if strings.ContainsAny(text, ".eE") {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("the number %.40s is none of Ruby's floats", text)
		}
		d.float(x)
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

// float writes a float. Those that Ruby keeps in a pointer's place are one object if they are equal.
func (d *dumper) float(x float64) {
	bits := math.Float64bits(x)
	if high := bits >> 60 & 7; bits == 0 || (high == 3 || high == 4) && bits != 0x3000000000000000 {
		if n, ok := d.floats[x]; ok {
			d.link(n)
			return
		}
		d.floats[x] = d.objects
	}
	d.objects++
	text := floatText(x)
	d.out = append(appendLong(append(d.out, 'f'), int64(len(text))), text...)
}

// floatText is how Marshal writes a float: the shortest digits that read as it, without a point where there is no fraction.
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

// appendLong writes an integer of at most 32 bits as Marshal writes lengths.
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
