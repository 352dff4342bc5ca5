package marshal

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// decoder writes the text of a value while it reads it. There is no tree: what is linked to later is a
// span of the text so far, and is copied.
type decoder struct {
	data []byte
	at   int // next byte
	most int // of text

	text  []byte   // what is written now: the value, or at a higher level what is no part of its text
	texts [][]byte // by level; that of the present one is in text
	level int
	loss  Loss

	objects []object // by number: all but nil, booleans, small integers and symbols
	symbols []span   // by number, in data
	keys    [][]byte // of the hashes that are open
	path    []step
	depth   int // arrays and hashes that are open

	room struct { // for the first of them, which is enough for most payloads
		objects [16]object
		symbols [8]span
		keys    [8][]byte
		path    [8]step
	}
}

type span struct{ from, to int }

// object is what a link can mean. Its text is complete when to is not 0.
type object struct {
	span
	kind   kind
	loss   Loss
	level  uint8
	height uint8 // arrays and hashes in each other, itself included
}

type kind uint8

const (
	aString kind = iota
	aFloat
	anInteger
	anArray
	aHash
)

var kindNames = [...]string{"String", "Float", "Integer", "Array", "Hash"}

// value reads one value, appends its text, and returns how many arrays and hashes lie in each other.
func (d *decoder) value() (height int, err error) {
	at := d.at
	t, err := d.byte("a value")
	if err != nil {
		return 0, err
	}
	switch t {
	case '0':
		d.text = append(d.text, "null"...)
	case 'T':
		d.text = append(d.text, "true"...)
	case 'F':
		d.text = append(d.text, "false"...)
	case 'i':
		err = d.small()
	case 'l':
		err = d.bignum(at)
	case 'f':
		err = d.float(at)
	case '"':
		err = d.string(at, false)
	case ':':
		err = d.symbol(at, false)
	case ';':
		err = d.symlink(at)
	case '[':
		height, err = d.array(at)
	case '{', '}':
		height, err = d.hash(at, t == '}')
	case 'I':
		height, err = d.withVariables(at)
	case '@':
		height, err = d.link(at)
	default:
		err = d.notPlain(at, t)
	}
	if err == nil {
		err = d.bound(at, 0)
	}
	return height, err
}

// bound refuses a text that would be too long with so many bytes more.
func (d *decoder) bound(at, more int) error {
	size := len(d.text) + more
	for level, text := range d.texts {
		if level != d.level {
			size += len(text)
		}
	}
	if size <= d.most {
		return nil
	}
	return d.refuse(at, fmt.Sprintf("a value whose text is longer than %d bytes, as %d bytes may say: parts of it are used again and again", d.most, len(d.data)))
}

func (d *decoder) byte(of string) (byte, error) {
	if d.at >= len(d.data) {
		return 0, d.refuse(d.at, "data that ends in the middle of "+of)
	}
	d.at++
	return d.data[d.at-1], nil
}

// long reads an integer of up to 32 bits, with its sign.
func (d *decoder) long(of string) (int64, error) {
	b, err := d.byte(of)
	if err != nil {
		return 0, err
	}
	size := int(int8(b))
	switch {
	case size > 4:
		return int64(size - 5), nil
	case size < -4:
		return int64(size + 5), nil
	}
	var n int64
	if size < 0 {
		size, n = -size, -1<<(-8*size)
	}
	for i := range size {
		if b, err = d.byte(of); err != nil {
			return 0, err
		}
		n |= int64(b) << (8 * i)
	}
	return n, nil
}

// length reads how many things follow, each of which takes so many bytes at least.
func (d *decoder) length(of string, each int) (int, error) {
	at := d.at
	n, err := d.long(of)
	switch left := int64(len(d.data) - d.at); {
	case err != nil:
		return 0, err
	case n < 0:
		return 0, d.refuse(at, fmt.Sprintf("%s with the length %d", of, n))
	case n > left/int64(each):
		return 0, d.refuse(at, fmt.Sprintf("%s with the length %d in data that ends after %d bytes more", of, n, left))
	}
	return int(n), nil
}

func (d *decoder) bytes(of string) (span, error) {
	n, err := d.length(of, 1)
	d.at += n
	return span{d.at - n, d.at}, err
}

func (d *decoder) in(s span) []byte { return d.data[s.from:s.to] }

// begin gives the next number to an object whose text follows.
func (d *decoder) begin(kind kind) int {
	d.objects = append(d.objects, object{span: span{from: len(d.text)}, kind: kind, level: uint8(d.level)})
	return len(d.objects) - 1
}

// end notes the text of an object that has lost something by itself.
func (d *decoder) end(number, height int, loss Loss) {
	o := &d.objects[number]
	o.to, o.height, o.loss = len(d.text), uint8(height), loss
}

// small reads an integer that has no number as an object.
func (d *decoder) small() error {
	n, err := d.long("an integer")
	d.text = strconv.AppendInt(d.text, n, 10)
	return err
}

func (d *decoder) bignum(at int) error {
	sign, err := d.byte("an integer")
	if err == nil && sign != '+' && sign != '-' {
		err = d.refuse(at, fmt.Sprintf("an integer with the sign %q", sign))
	}
	if err != nil {
		return err
	}
	n, err := d.length("an integer", 2)
	if err != nil {
		return err
	}
	if 2*n > maxInteger {
		return d.refuse(at, fmt.Sprintf("an integer of %d bytes: it may have %d", 2*n, maxInteger))
	}
	number := d.begin(anInteger)
	digits := slices.Clone(d.data[d.at : d.at+2*n])
	d.at += 2 * n
	slices.Reverse(digits)
	value := new(big.Int).SetBytes(digits)
	var loss Loss
	if value.Cmp(most53) > 0 {
		loss = LostInteger
	}
	if sign == '-' {
		value.Neg(value)
	}
	d.text = value.Append(d.text, 10)
	d.loss |= loss
	d.end(number, 0, loss)
	return nil
}

var most53 = big.NewInt(1 << 53)

func (d *decoder) float(at int) error {
	s, err := d.bytes("a float")
	if err != nil {
		return err
	}
	number := d.begin(aFloat)
	text, why := appendFloat(d.text, d.in(s))
	if why != "" {
		return d.refuse(at, why)
	}
	d.text = text
	d.end(number, 0, 0)
	return nil
}

// string reads what follows the type: bytes, and their encoding if they are marked.
func (d *decoder) string(at int, marked bool) error {
	s, err := d.bytes("a string")
	if err != nil {
		return err
	}
	number, encoding := d.begin(aString), binary
	if marked {
		if encoding, err = d.encoding(at, "String"); err != nil {
			return err
		}
	}
	var loss Loss
	if encoding != utf8Name {
		loss = LostEncoding
	}
	if why := textIn(d.in(s), encoding); why != "" {
		return d.refuse(at, why)
	}
	d.objects[number].from = len(d.text)
	d.text = appendQuoted(d.text, d.in(s))
	d.loss |= loss
	d.end(number, 0, loss)
	return nil
}

// symbol reads what follows the type. The number of a symbol is given before its encoding is read.
func (d *decoder) symbol(at int, marked bool) error {
	s, err := d.bytes("a symbol")
	if err != nil {
		return err
	}
	d.symbols = append(d.symbols, s)
	encoding := binary
	if marked {
		if encoding, err = d.encoding(at, "Symbol"); err != nil {
			return err
		}
	}
	if why := textIn(d.in(s), encoding); why != "" {
		return d.refuse(at, why)
	}
	d.appendSymbol(s)
	return nil
}

func (d *decoder) symlink(at int) error {
	s, err := d.linked(at)
	if err == nil {
		d.appendSymbol(s)
	}
	return err
}

func (d *decoder) appendSymbol(s span) {
	d.text = appendQuoted(d.text, d.in(s))
	d.loss |= LostSymbol
}

// linked reads the number of a symbol.
func (d *decoder) linked(at int) (span, error) {
	n, err := d.soFar(at, "a link to a symbol", "symbol", len(d.symbols))
	if err != nil {
		return span{}, err
	}
	return d.symbols[n], nil
}

// soFar reads the number of one of those that there are so far.
func (d *decoder) soFar(at int, what, kind string, count int) (int64, error) {
	n, err := d.long(what)
	if err == nil && (n < 0 || n >= int64(count)) {
		err = d.refuse(at, fmt.Sprintf("a link to %s %d of %d so far", kind, n, count))
	}
	return n, err
}

// className reads a symbol that names a class or a module. Its encoding does not matter.
func (d *decoder) className(of string) ([]byte, error) {
	if d.at == len(d.data) || d.data[d.at] != 'I' {
		return d.name(of)
	}
	at := d.at
	d.at++
	if d.at < len(d.data) && d.data[d.at] == ';' {
		return nil, d.refuse(at, of+" that is a link to a symbol, with variables")
	}
	s, err := d.name(of)
	if err == nil {
		_, err = d.encoding(at, "Symbol")
	}
	return s, err
}

// name reads a symbol that names something, as a variable, and has no encoding.
func (d *decoder) name(of string) ([]byte, error) {
	at := d.at
	t, err := d.byte(of)
	if err != nil {
		return nil, err
	}
	var s span
	switch t {
	case ':':
		if s, err = d.bytes(of); err == nil {
			d.symbols = append(d.symbols, s)
		}
	case ';':
		s, err = d.linked(at)
	default:
		err = d.refuse(at, fmt.Sprintf("%s that is no symbol, but of the type %q", of, t))
	}
	return d.in(s), err
}

// encoding reads the variables of a string or a symbol: its encoding, and no other.
func (d *decoder) encoding(at int, of string) (string, error) {
	n, err := d.length("variables", 2)
	if err != nil || n == 0 {
		return binary, err
	}
	name, err := d.name("the name of a variable")
	if err != nil {
		return "", err
	}
	short, long := string(name) == "E", string(name) == "encoding"
	if n > 1 || !short && !long {
		return "", d.refuse(at, "instance variables of a "+of)
	}
	valued := d.at
	t, err := d.byte("an encoding")
	switch {
	case err != nil:
		return "", err
	case short && t == 'T':
		return utf8Name, nil
	case short && t == 'F':
		return asciiName, nil
	case long && t == '"':
		return d.encodingName()
	case long && t == '@':
		if o, err := d.object(valued); err != nil {
			return "", err
		} else if o.kind == aString {
			text := d.textOf(o)
			return string(text[1 : len(text)-1]), nil // a name with what JSON escapes is the name of none
		}
	}
	return "", d.refuse(valued, "an encoding that is none")
}

// encodingName reads the name of an encoding, which is an object like any string.
func (d *decoder) encodingName() (string, error) {
	s, err := d.bytes("the name of an encoding")
	if err != nil {
		return "", err
	}
	if why := textIn(d.in(s), binary); why != "" {
		return "", d.refuse(s.from, why)
	}
	d.aside(func() {
		number := d.begin(aString)
		d.text = appendQuoted(d.text, d.in(s))
		d.end(number, 0, LostEncoding)
	})
	return string(d.in(s)), nil
}

// aside has text written that is no part of the text so far but can be linked to, as the default of a
// hash and the name of an encoding. It is a level higher: what is written here may have both in it.
func (d *decoder) aside(write func()) {
	if d.level+1 >= len(d.texts) {
		d.texts = append(d.texts, make([][]byte, d.level+2-len(d.texts))...)
	}
	d.texts[d.level] = d.text
	d.level++
	d.text = d.texts[d.level]
	write()
	d.texts[d.level] = d.text
	d.level--
	d.text = d.texts[d.level]
}

// object reads the number of an object whose text is complete.
func (d *decoder) object(at int) (object, error) {
	n, err := d.soFar(at, "a link", "object", len(d.objects))
	if err != nil {
		return object{}, err
	}
	o := d.objects[n]
	if o.to == 0 {
		return object{}, d.refuse(at, "it holds itself")
	}
	return o, nil
}

func (d *decoder) textOf(o object) []byte {
	if int(o.level) == d.level {
		return d.text[o.from:o.to]
	}
	return d.texts[o.level][o.from:o.to]
}

func (d *decoder) link(at int) (height int, err error) {
	o, err := d.object(at)
	if err == nil && d.depth+int(o.height) > maxDepth {
		err = d.refuse(at, tooDeep)
	}
	if err == nil {
		err = d.bound(at, o.to-o.from)
	}
	if err != nil {
		return 0, err
	}
	d.text = append(d.text, d.textOf(o)...)
	d.loss |= o.loss
	return int(o.height), nil
}

const tooDeep = "nested deeper than 100"

// withVariables reads what follows an I: a value, then its variables.
func (d *decoder) withVariables(at int) (height int, err error) {
	t, err := d.byte("a value with variables")
	if err != nil {
		return 0, err
	}
	switch t {
	case '"':
		return 0, d.string(at, true)
	case ':':
		return 0, d.symbol(at, true)
	case '[':
		height, err = d.array(at)
	case '{', '}':
		height, err = d.hash(at, t == '}')
	default:
		if isBare(t) {
			return 0, d.refuse(at, variablesOf(t))
		}
		return 0, d.notPlain(at, t)
	}
	if err == nil {
		err = d.flag(at, t)
	}
	return height, err
}

// isBare says whether values of a type never have variables.
func isBare(t byte) bool { return strings.IndexByte("0TFilf;@I", t) >= 0 }

func variablesOf(t byte) string { return fmt.Sprintf("variables of a value of the type %q", t) }

// flag reads the variables of an array or a hash: none, but a hash may be marked as one of keyword
// arguments, which says nothing of its content.
func (d *decoder) flag(at int, t byte) error {
	n, err := d.length("variables", 2)
	if err != nil || n == 0 {
		return err
	}
	if t == '[' {
		return d.refuse(at, "instance variables of an Array")
	}
	name, err := d.name("the name of a variable")
	if err == nil && (n > 1 || string(name) != "K" || d.at >= len(d.data) || d.data[d.at] != 'T') {
		err = d.refuse(at, "instance variables of a Hash")
	}
	d.at++
	return err
}

// notPlain refuses a value of a type that is not plain data.
func (d *decoder) notPlain(at int, t byte) error {
	_, why, err := d.foreign(t)
	if err == nil {
		err = d.refuse(at, why)
	}
	return err
}

// noKey refuses a key of a hash.
func (d *decoder) noKey(at int) error {
	t := d.data[at]
	if d.at++; t == 'I' {
		t, d.at = d.data[at+1], d.at+1
		if isBare(t) {
			return d.refuse(at, variablesOf(t))
		}
	}
	class, why, err := d.foreign(t)
	if err == nil && class != "" {
		why = "a hash's key of " + class
	}
	if err == nil {
		err = d.refuse(at, why)
	}
	return err
}

// foreign says what a value of a type is that is not plain data, or no key, and of which class, unless
// that is a kind of string.
func (d *decoder) foreign(t byte) (class, why string, err error) {
	var module []byte
	for t == 'e' && err == nil {
		if module, err = d.className("the name of a module"); err == nil {
			t, err = d.byte("an extended value")
		}
	}
	if err != nil {
		return "", "", err
	}
	switch t {
	case '"', '[', '{', '}', 'f':
		return map[byte]string{'[': "Array", '{': "Hash", '}': "Hash", 'f': "Float"}[t], "extended by " + shown(module), nil
	case 'o', 'S', 'u', 'U', 'd':
		name, err := d.className("the name of a class")
		return shown(name), "an object of " + shown(name), err
	case 'C':
		name, err := d.className("the name of a class")
		if err == nil {
			t, err = d.byte("an object")
		}
		why = "an object of " + shown(name)
		switch {
		case t == '"':
			return "", why, err
		case (t == '{' || t == '}') && string(name) == "Hash":
			return "Hash", "a hash that compares by identity", err
		}
		return shown(name), why, err
	case '/':
		return "Regexp", "an object of Regexp", nil
	case 'c':
		return "Class", "a class", nil
	case 'm':
		return "Module", "a module", nil
	case 'M':
		return "Module", "a class or a module", nil
	}
	return "", fmt.Sprintf("a value of the type %q, which Marshal 4.8 does not have here", t), nil
}

// open begins an array or a hash.
func (d *decoder) open(at int, kind kind, of string, each int) (number, n int, err error) {
	if d.depth++; d.depth > maxDepth {
		return 0, 0, d.refuse(at, tooDeep)
	}
	n, err = d.length(of, each)
	return d.begin(kind), n, err
}

func (d *decoder) array(at int) (height int, err error) {
	number, n, err := d.open(at, anArray, "an array", 1)
	if err != nil {
		return 0, err
	}
	outside := d.loss
	d.loss = 0
	d.text = append(d.text, '[')
	d.path = append(d.path, step{})
	for i := range n {
		if i > 0 {
			d.text = append(d.text, ',')
		}
		d.path[len(d.path)-1].index = i
		h, err := d.value()
		if err != nil {
			return 0, err
		}
		height = max(height, h)
	}
	d.text = append(d.text, ']')
	return d.close(number, height+1, outside), nil
}

// close ends an array or a hash.
func (d *decoder) close(number, height int, outside Loss) int {
	d.path = d.path[:len(d.path)-1]
	d.depth--
	d.end(number, height, d.loss)
	d.loss |= outside
	return height
}

func (d *decoder) hash(at int, hasDefault bool) (height int, err error) {
	number, n, err := d.open(at, aHash, "a hash", 2)
	if err != nil {
		return 0, err
	}
	outside, keys := d.loss, len(d.keys)
	d.loss = 0
	d.text = append(d.text, '{')
	d.path = append(d.path, step{})
	for i := range n {
		if i > 0 {
			d.text = append(d.text, ',')
		}
		h, err := d.pair()
		if err != nil {
			return 0, err
		}
		height = max(height, h)
	}
	d.text = append(d.text, '}')
	if twice := firstTwice(d.keys[keys:]); twice != nil {
		d.path = d.path[:len(d.path)-1]
		return 0, d.refuse(at, fmt.Sprintf("two keys of a hash are %s in JSON", shown(twice)))
	}
	d.keys = d.keys[:keys]
	if hasDefault {
		h, err := d.defaultValue()
		if err != nil {
			return 0, err
		}
		height = max(height, h)
	}
	return d.close(number, height+1, outside), nil
}

// pair reads a key and its value.
func (d *decoder) pair() (height int, err error) {
	last := len(d.path) - 1
	outer := d.path
	d.path = d.path[:last] // a key that is refused is named with its hash
	from := len(d.text)
	if err := d.key(); err != nil {
		return 0, err
	}
	key := d.text[from:]
	d.keys = append(d.keys, key)
	d.text = append(d.text, ':')
	d.path = outer
	d.path[last].key = key
	return d.value()
}

// key reads a key of a hash, and appends it as a string.
func (d *decoder) key() error {
	at := d.at
	t, err := d.byte("a hash")
	if err != nil {
		return err
	}
	d.at = at
	switch t {
	case '"', ':', ';', 'I':
		if t == 'I' && at+1 < len(d.data) && d.data[at+1] != '"' && d.data[at+1] != ':' {
			return d.noKey(at)
		}
		_, err = d.value()
		return err
	case '@':
		d.at++
		o, err := d.object(at)
		if err != nil {
			return err
		}
		if o.kind != aString && o.kind != anInteger {
			return d.refuse(at, "a hash's key of "+kindNames[o.kind])
		}
		d.at = at
		if o.kind == aString {
			_, err = d.value()
			return err
		}
	case 'T', 'F', 'i', 'l':
	case '0':
		d.at++
		d.text = append(d.text, `""`...)
		d.loss |= LostKey
		return nil
	default:
		return d.noKey(at)
	}
	outside := d.loss
	d.text = append(d.text, '"')
	_, err = d.value()
	d.text = append(d.text, '"')
	d.loss = outside | LostKey // a long integer loses nothing in a string
	return err
}

// defaultValue reads the value of keys that are not there. It must be plain, but is not in the text.
func (d *decoder) defaultValue() (height int, err error) {
	at, outer, outside := d.at, d.path, d.loss
	d.path = d.path[:len(d.path)-1]
	d.aside(func() { height, err = d.value() })
	d.path, d.loss = outer, outside
	if refused := (*Error)(nil); errors.As(err, &refused) {
		refused.Why = "the default of a hash: " + refused.Why
	}
	if err == nil && d.data[at] != '0' {
		d.loss |= LostDefault
	}
	return height, err
}

// firstTwice returns a text that is there twice, or nil. It reorders the texts.
func firstTwice(texts [][]byte) []byte {
	if len(texts) > 8 {
		slices.SortFunc(texts, bytes.Compare)
		for i := range len(texts) - 1 {
			if bytes.Equal(texts[i], texts[i+1]) {
				return texts[i]
			}
		}
		return nil
	}
	for i, text := range texts {
		for _, other := range texts[:i] {
			if bytes.Equal(text, other) {
				return text
			}
		}
	}
	return nil
}
