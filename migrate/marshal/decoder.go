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

// decoder writes the text of a value while it reads the value. It builds no tree. An object that may be linked to later is a
// span of the text so far, and a link copies that span.
type decoder struct {
	data []byte
	at   int // next byte
	most int // of text

	limit int // of text, as the caller has asked

	text  []byte   // the text of the current level: level 0 is the value, higher levels are not part of it
	texts [][]byte // by level; the current level is in text
	level int
	loss  Loss

	objects []object // by number: every value except nil, booleans, small integers and symbols
	symbols []span   // by number, in data
	keys    [][]byte // keys of the open hashes
	path    []step
	depth   int // the number of open arrays and hashes

	room struct { // first storage of the slices, which is enough for most payloads
		objects [16]object
		symbols [8]span
		keys    [8][]byte
		path    [8]step
	}
}

type span struct{ from, to int }

// object is the target of a link. Its text is complete when to is not 0.
type object struct {
	span
	kind   kind
	loss   Loss
	level  uint8
	height uint8 // nesting of arrays and hashes, itself included
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

// decodeValue reads a value, appends its text, and returns the nesting of its arrays and hashes.
func (d *decoder) decodeValue() (height int, err error) {
	at := d.at
	t, err := d.readByte("a value")
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
		err = d.decodeSmall()
	case 'l':
		err = d.decodeBignum(at)
	case 'f':
		err = d.decodeFloat(at)
	case '"':
		err = d.decodeString(at, false)
	case ':':
		err = d.decodeSymbol(at, false)
	case ';':
		err = d.decodeSymlink(at)
	case '[':
		height, err = d.decodeArray(at)
	case '{', '}':
		height, err = d.decodeHash(at, t == '}')
	case 'I':
		height, err = d.withVariables(at)
	case '@':
		height, err = d.decodeLink(at)
	default:
		err = d.notPlain(at, t)
	}
	if err == nil {
		err = d.checkSize(at, 0)
	}
	return height, err
}

// checkSize returns an error if the text would be too long with more bytes added.
func (d *decoder) checkSize(at, more int) error {
	size := len(d.text) + more
	for level, text := range d.texts {
		if level != d.level {
			size += len(text)
		}
	}
	if size <= d.most {
		return nil
	}
	if d.most == d.limit {
		return &Error{Why: fmt.Sprintf("a value whose text is longer than %d bytes, which is the limit", d.limit), Place: d.place(), Offset: at, Long: true}
	}
	return d.refuse(at, fmt.Sprintf("a value whose text is longer than %d bytes, as %d bytes may say: parts of it are used again and again",
		d.most, len(d.data)))
}

func (d *decoder) readByte(of string) (byte, error) {
	if d.at >= len(d.data) {
		return 0, d.refuse(d.at, "data that ends in the middle of "+of)
	}
	d.at++
	return d.data[d.at-1], nil
}

// readLong reads a signed integer of at most 32 bits.
func (d *decoder) readLong(of string) (int64, error) {
	b, err := d.readByte(of)
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
		if b, err = d.readByte(of); err != nil {
			return 0, err
		}
		n |= int64(b) << (8 * i)
	}
	return n, nil
}

// readLength reads the number of parts that follow. Each part has at least the given number of bytes.
func (d *decoder) readLength(of string, each int) (int, error) {
	at := d.at
	n, err := d.readLong(of)
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

func (d *decoder) readBytes(of string) (span, error) {
	n, err := d.readLength(of, 1)
	d.at += n
	return span{d.at - n, d.at}, err
}

func (d *decoder) bytesOf(s span) []byte { return d.data[s.from:s.to] }

// beginObject gives the next number to an object whose text follows.
func (d *decoder) beginObject(kind kind) int {
	d.objects = append(d.objects, object{span: span{from: len(d.text)}, kind: kind, level: uint8(d.level)})
	return len(d.objects) - 1
}

// endObject records the text of an object, and the details that were lost within it.
func (d *decoder) endObject(number, height int, loss Loss) {
	o := &d.objects[number]
	o.to, o.height, o.loss = len(d.text), uint8(height), loss
}

// decodeSmall reads an integer that is not numbered as an object.
func (d *decoder) decodeSmall() error {
	n, err := d.readLong("an integer")
	d.text = strconv.AppendInt(d.text, n, 10)
	return err
}

// decodeBignum reads an integer beyond 31 bits. Its digits have 16 bits, the lowest first. JSON readers with floats round
// integers beyond 2^53, so these are recorded as LostInteger.
func (d *decoder) decodeBignum(at int) error {
	sign, err := d.readByte("an integer")
	if err == nil && sign != '+' && sign != '-' {
		err = d.refuse(at, fmt.Sprintf("an integer with the sign %q", sign))
	}
	if err != nil {
		return err
	}
	n, err := d.readLength("an integer", 2)
	if err != nil {
		return err
	}
	if 2*n > maxInteger {
		return d.refuse(at, fmt.Sprintf("an integer of %d bytes: it may have %d", 2*n, maxInteger))
	}
	number := d.beginObject(anInteger)
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
	d.endObject(number, 0, loss)
	return nil
}

var most53 = big.NewInt(1 << 53)

// decodeFloat reads a float, which a dump has as text. It refuses floats that JSON cannot express.
func (d *decoder) decodeFloat(at int) error {
	s, err := d.readBytes("a float")
	if err != nil {
		return err
	}
	number := d.beginObject(aFloat)
	text, why := appendFloat(d.text, d.bytesOf(s))
	if why != "" {
		return d.refuse(at, why)
	}
	d.text = text
	d.endObject(number, 0, 0)
	return nil
}

// decodeString reads a string after its type: the bytes, and their encoding if marked is set.
func (d *decoder) decodeString(at int, marked bool) error {
	s, err := d.readBytes("a string")
	if err != nil {
		return err
	}
	number, encoding := d.beginObject(aString), binary
	if marked {
		if encoding, err = d.readEncoding(at, "String"); err != nil {
			return err
		}
	}
	var loss Loss
	if encoding != utf8Name {
		loss = LostEncoding
	}
	if why := textIn(d.bytesOf(s), encoding); why != "" {
		return d.refuse(at, why)
	}
	if err := d.checkSize(at, s.to-s.from); err != nil {
		return err
	}
	d.objects[number].from = len(d.text)
	d.text = appendQuoted(d.text, d.bytesOf(s))
	d.loss |= loss
	d.endObject(number, 0, loss)
	return nil
}

// decodeSymbol reads a symbol after its type. The symbol gets its number before its encoding is read.
func (d *decoder) decodeSymbol(at int, marked bool) error {
	s, err := d.readBytes("a symbol")
	if err != nil {
		return err
	}
	d.symbols = append(d.symbols, s)
	encoding := binary
	if marked {
		if encoding, err = d.readEncoding(at, "Symbol"); err != nil {
			return err
		}
	}
	if why := textIn(d.bytesOf(s), encoding); why != "" {
		return d.refuse(at, why)
	}
	d.appendSymbol(s)
	return nil
}

func (d *decoder) decodeSymlink(at int) error {
	s, err := d.readSymlink(at)
	if err == nil {
		d.appendSymbol(s)
	}
	return err
}

func (d *decoder) appendSymbol(s span) {
	d.text = appendQuoted(d.text, d.bytesOf(s))
	d.loss |= LostSymbol
}

// readSymlink reads the number of an earlier symbol.
func (d *decoder) readSymlink(at int) (span, error) {
	n, err := d.soFar(at, "a link to a symbol", "symbol", len(d.symbols))
	if err != nil {
		return span{}, err
	}
	return d.symbols[n], nil
}

// soFar reads a number below count.
func (d *decoder) soFar(at int, what, kind string, count int) (int64, error) {
	n, err := d.readLong(what)
	if err == nil && (n < 0 || n >= int64(count)) {
		err = d.refuse(at, fmt.Sprintf("a link to %s %d of %d so far", kind, n, count))
	}
	return n, err
}

// className reads a symbol that names a class or a module. Its encoding does not matter.
func (d *decoder) className(of string) ([]byte, error) {
	if d.at == len(d.data) || d.data[d.at] != 'I' {
		return d.readName(of)
	}
	at := d.at
	d.at++
	if d.at < len(d.data) && d.data[d.at] == ';' {
		return nil, d.refuse(at, of+" that is a link to a symbol, with variables")
	}
	s, err := d.readName(of)
	if err == nil {
		_, err = d.readEncoding(at, "Symbol")
	}
	return s, err
}

// readName reads a symbol without an encoding, such as the name of a variable.
func (d *decoder) readName(of string) ([]byte, error) {
	at := d.at
	t, err := d.readByte(of)
	if err != nil {
		return nil, err
	}
	var s span
	switch t {
	case ':':
		if s, err = d.readBytes(of); err == nil {
			d.symbols = append(d.symbols, s)
		}
	case ';':
		s, err = d.readSymlink(at)
	default:
		err = d.refuse(at, fmt.Sprintf("%s that is no symbol, but of the type %q", of, t))
	}
	return d.bytesOf(s), err
}

// readEncoding reads the variables of a string or a symbol, which may only be its encoding.
func (d *decoder) readEncoding(at int, of string) (string, error) {
	n, err := d.readLength("variables", 2)
	if err != nil || n == 0 {
		return binary, err
	}
	name, err := d.readName("the name of a variable")
	if err != nil {
		return "", err
	}
	short, long := string(name) == "E", string(name) == "encoding"
	if n > 1 || !short && !long {
		return "", d.refuse(at, "instance variables of a "+of)
	}
	valued := d.at
	t, err := d.readByte("an encoding")
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
		if o, err := d.readObjectLink(valued); err != nil {
			return "", err
		} else if o.kind == aString {
			text := d.textOf(o)
			return string(text[1 : len(text)-1]), nil // no encoding has a name that JSON escapes
		}
	}
	return "", d.refuse(valued, "an unknown encoding")
}

// encodingName reads the name of an encoding, which is an object like any string.
func (d *decoder) encodingName() (string, error) {
	s, err := d.readBytes("the name of an encoding")
	if err != nil {
		return "", err
	}
	if why := textIn(d.bytesOf(s), binary); why != "" {
		return "", d.refuse(s.from, why)
	}
	d.writeAside(func() {
		number := d.beginObject(aString)
		d.text = appendQuoted(d.text, d.bytesOf(s))
		d.endObject(number, 0, LostEncoding)
	})
	return string(d.bytesOf(s)), nil
}

// writeAside lets write append text that is not part of the value but can be linked to: the default of a hash, and the name
// of an encoding. Such text has a level of its own, because such texts may nest.
func (d *decoder) writeAside(write func()) {
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

// readObjectLink reads the number of an object whose text is complete.
func (d *decoder) readObjectLink(at int) (object, error) {
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

// decodeLink copies the text of an earlier object. It bounds depth and size, because links to links can make a short dump
// very deep and long.
func (d *decoder) decodeLink(at int) (height int, err error) {
	o, err := d.readObjectLink(at)
	if err == nil && d.depth+int(o.height) > maxDepth {
		err = d.refuse(at, tooDeep)
	}
	if err == nil {
		err = d.checkSize(at, o.to-o.from)
	}
	if err != nil {
		return 0, err
	}
	d.text = append(d.text, d.textOf(o)...)
	d.loss |= o.loss
	return int(o.height), nil
}

const tooDeep = "nested deeper than 100"

// withVariables reads a value and its variables, after the type I.
func (d *decoder) withVariables(at int) (height int, err error) {
	t, err := d.readByte("a value with variables")
	if err != nil {
		return 0, err
	}
	switch t {
	case '"':
		return 0, d.decodeString(at, true)
	case ':':
		return 0, d.decodeSymbol(at, true)
	case '[':
		height, err = d.decodeArray(at)
	case '{', '}':
		height, err = d.decodeHash(at, t == '}')
	default:
		if isBare(t) {
			return 0, d.refuse(at, variablesOf(t))
		}
		return 0, d.notPlain(at, t)
	}
	if err == nil {
		err = d.readFlag(at, t)
	}
	return height, err
}

// isBare reports whether values of a type never have variables.
func isBare(t byte) bool { return strings.IndexByte("0TFilf;@I", t) >= 0 }

func variablesOf(t byte) string { return fmt.Sprintf("variables of a value of the type %q", t) }

// readFlag reads the variables of an array or a hash. There must be none, except the mark of a hash of keyword arguments,
// which says nothing about its content.
func (d *decoder) readFlag(at int, t byte) error {
	n, err := d.readLength("variables", 2)
	if err != nil || n == 0 {
		return err
	}
	if t == '[' {
		return d.refuse(at, "instance variables of an Array")
	}
	name, err := d.readName("the name of a variable")
	if err == nil && (n > 1 || string(name) != "K" || d.at >= len(d.data) || d.data[d.at] != 'T') {
		err = d.refuse(at, "instance variables of a Hash")
	}
	d.at++
	return err
}

// notPlain returns the error for a value that is not plain data.
func (d *decoder) notPlain(at int, t byte) error {
	_, why, err := d.describeForeign(t)
	if err == nil {
		err = d.refuse(at, why)
	}
	return err
}

// noKey returns the error for a value that cannot be the key of a hash.
func (d *decoder) noKey(at int) error {
	t := d.data[at]
	if d.at++; t == 'I' {
		t, d.at = d.data[at+1], d.at+1
		if isBare(t) {
			return d.refuse(at, variablesOf(t))
		}
	}
	class, why, err := d.describeForeign(t)
	if err == nil && class != "" {
		why = "a hash's key of " + class
	}
	if err == nil {
		err = d.refuse(at, why)
	}
	return err
}

// describeForeign describes a value that is not plain data, or not a key, and returns its class. The class is "" for a kind
// of string.
func (d *decoder) describeForeign(t byte) (class, why string, err error) {
	var module []byte
	for t == 'e' && err == nil {
		if module, err = d.className("the name of a module"); err == nil {
			t, err = d.readByte("an extended value")
		}
	}
	if err != nil {
		return "", "", err
	}
	switch t {
	case '"', '[', '{', '}', 'f':
		return map[byte]string{'[': "Array", '{': "Hash", '}': "Hash", 'f': "Float"}[t], "extended by " + quoteName(module), nil
	case 'o', 'S', 'u', 'U', 'd':
		name, err := d.className("the name of a class")
		return quoteName(name), "an object of " + quoteName(name), err
	case 'C':
		name, err := d.className("the name of a class")
		if err == nil {
			t, err = d.readByte("an object")
		}
		why = "an object of " + quoteName(name)
		switch {
		case t == '"':
			return "", why, err
		case (t == '{' || t == '}') && string(name) == "Hash":
			return "Hash", "a hash that compares by identity", err
		}
		return quoteName(name), why, err
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

// openContainer begins an array or a hash.
func (d *decoder) openContainer(at int, kind kind, of string, each int) (number, n int, err error) {
	if d.depth++; d.depth > maxDepth {
		return 0, 0, d.refuse(at, tooDeep)
	}
	n, err = d.readLength(of, each)
	return d.beginObject(kind), n, err
}

// decodeArray reads an array and returns its height. d.loss covers only the array meanwhile, because a link to the array
// loses the same details again.
func (d *decoder) decodeArray(at int) (height int, err error) {
	number, n, err := d.openContainer(at, anArray, "an array", 1)
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
		h, err := d.decodeValue()
		if err != nil {
			return 0, err
		}
		height = max(height, h)
	}
	d.text = append(d.text, ']')
	return d.closeContainer(number, height+1, outside), nil
}

// closeContainer ends an array or a hash.
func (d *decoder) closeContainer(number, height int, outside Loss) int {
	d.path = d.path[:len(d.path)-1]
	d.depth--
	d.endObject(number, height, d.loss)
	d.loss |= outside
	return height
}

// decodeHash reads a hash and returns its height. It refuses keys that become equal in JSON, because a reader would lose a
// value.
func (d *decoder) decodeHash(at int, hasDefault bool) (height int, err error) {
	number, n, err := d.openContainer(at, aHash, "a hash", 2)
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
		h, err := d.decodePair()
		if err != nil {
			return 0, err
		}
		height = max(height, h)
	}
	d.text = append(d.text, '}')
	if twice := firstTwice(d.keys[keys:]); twice != nil {
		d.path = d.path[:len(d.path)-1]
		return 0, d.refuse(at, fmt.Sprintf("two keys of a hash are %s in JSON", quoteName(twice)))
	}
	d.keys = d.keys[:keys]
	if hasDefault {
		h, err := d.defaultValue()
		if err != nil {
			return 0, err
		}
		height = max(height, h)
	}
	return d.closeContainer(number, height+1, outside), nil
}

// decodePair reads a key and its value.
func (d *decoder) decodePair() (height int, err error) {
	last := len(d.path) - 1
	outer := d.path
	d.path = d.path[:last] // an error of a key has the place of its hash
	from := len(d.text)
	if err := d.decodeKey(); err != nil {
		return 0, err
	}
	key := d.text[from:]
	d.keys = append(d.keys, key)
	d.text = append(d.text, ':')
	d.path = outer
	d.path[last].key = key
	return d.decodeValue()
}

// decodeKey reads a key of a hash, and appends it as a string.
func (d *decoder) decodeKey() error {
	at := d.at
	t, err := d.readByte("a hash")
	if err != nil {
		return err
	}
	d.at = at
	switch t {
	case '"', ':', ';', 'I':
		if t == 'I' && at+1 < len(d.data) && d.data[at+1] != '"' && d.data[at+1] != ':' {
			return d.noKey(at)
		}
		_, err = d.decodeValue()
		return err
	case '@':
		d.at++
		o, err := d.readObjectLink(at)
		if err != nil {
			return err
		}
		if o.kind != aString && o.kind != anInteger {
			return d.refuse(at, "a hash's key of "+kindNames[o.kind])
		}
		d.at = at
		if o.kind == aString {
			_, err = d.decodeValue()
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
	_, err = d.decodeValue()
	d.text = append(d.text, '"')
	d.loss = outside | LostKey // a string can hold a long integer
	return err
}

// defaultValue reads the default of a hash. It must be plain data, but is not part of the text.
func (d *decoder) defaultValue() (height int, err error) {
	at, outer, outside := d.at, d.path, d.loss
	d.path = d.path[:len(d.path)-1]
	d.writeAside(func() { height, err = d.decodeValue() })
	d.path, d.loss = outer, outside
	if refused := (*Error)(nil); errors.As(err, &refused) {
		refused.Why = "the default of a hash: " + refused.Why
	}
	if err == nil && d.data[at] != '0' {
		d.loss |= LostDefault
	}
	return height, err
}

// firstTwice returns a text that occurs twice, or nil. It reorders the texts.
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
