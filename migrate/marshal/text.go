package marshal

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Names of encodings. Ruby marks UTF-8 and US-ASCII with a boolean, and does not mark binary strings.
const (
	binary    = "ASCII-8BIT"
	utf8Name  = "UTF-8"
	asciiName = "US-ASCII"
)

// asciiHolding are the encodings of Ruby 3.1 where every byte below 128 is an ASCII character. They are
// ascii_compatible? and not dummy?. UTF-16, UTF-32, UTF-7, ISO-2022 and EBCDIC are not among them.
var asciiHolding = func() map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(`
		ASCII-8BIT BINARY US-ASCII UTF-8 UTF8-MAC UTF8-DoCoMo UTF8-KDDI UTF8-SoftBank CESU-8
		ISO-8859-1 ISO-8859-2 ISO-8859-3 ISO-8859-4 ISO-8859-5 ISO-8859-6 ISO-8859-7 ISO-8859-8
		ISO-8859-9 ISO-8859-10 ISO-8859-11 ISO-8859-13 ISO-8859-14 ISO-8859-15 ISO-8859-16
		Windows-1250 Windows-1251 Windows-1252 Windows-1253 Windows-1254 Windows-1255 Windows-1256
		Windows-1257 Windows-1258 Windows-874 Windows-31J
		IBM437 IBM720 IBM737 IBM775 IBM852 IBM855 IBM857 IBM860 IBM861 IBM862 IBM863 IBM864 IBM865
		IBM866 IBM869 CP850 CP852 CP855 CP949 CP950 CP951 CP51932
		KOI8-R KOI8-U TIS-620 Big5 Big5-HKSCS Big5-UAO GB1988 GB2312 GB12345 GB18030 GBK
		EUC-JP EUC-KR EUC-TW EUC-JIS-2004 eucJP-ms Shift_JIS SJIS-DoCoMo SJIS-KDDI SJIS-SoftBank
		Emacs-Mule stateless-ISO-2022-JP stateless-ISO-2022-JP-KDDI
		MacJapanese macCentEuro macCroatian macCyrillic macGreek macIceland macRoman macRomania macThai
		macTurkish macUkraine`) {
		set[name] = true
	}
	return set
}()

// textIn returns the reason why bytes in an encoding cannot be written as text, or "".
func textIn(text []byte, encoding string) string {
	switch {
	case encoding == utf8Name && utf8.Valid(text):
	case encoding == utf8Name:
		return "a string that is not valid UTF-8"
	case !asciiHolding[encoding] || bytes.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }):
		return "a string in " + quoteName([]byte(encoding))
	}
	return ""
}

const hex = "0123456789abcdef"

// appendQuoted appends text as Ruby's JSON.generate writes it.
func appendQuoted(to, text []byte) []byte {
	to = append(to, '"')
	done := 0
	for i, c := range text {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		to = append(to, text[done:i]...)
		done = i + 1
		switch short := strings.IndexByte("\"\\\b\f\n\r\t", c); {
		case short >= 0:
			to = append(to, '\\', `"\bfnrt`[short])
		default:
			to = append(to, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(to, text[done:]...), '"')
}

// maxFloat is the maximum length of the text of a float. Ruby ignores digits after the 60th.
const maxFloat = 32

// isFloat reports whether Ruby writes floats in this form: digits, a fraction, an exponent.
func isFloat(text []byte) bool {
	digits := func() bool {
		n := 0
		for n < len(text) && '0' <= text[n] && text[n] <= '9' {
			n++
		}
		text = text[n:]
		return n > 0
	}
	skip := func(any string) bool {
		if len(text) == 0 || strings.IndexByte(any, text[0]) < 0 {
			return false
		}
		text = text[1:]
		return true
	}
	skip("-")
	if !digits() || skip(".") && !digits() {
		return false
	}
	if skip("e") {
		skip("+-")
		return digits() && len(text) == 0
	}
	return len(text) == 0
}

// appendFloat appends a float as Ruby's Float#to_s writes it, or returns the reason why it cannot.
func appendFloat(to, text []byte) (longer []byte, why string) {
	switch string(text) {
	case "nan":
		return nil, "the float NaN"
	case "inf":
		return nil, "the float Infinity"
	case "-inf":
		return nil, "the float -Infinity"
	}
	if len(text) > maxFloat || !isFloat(text) {
		return nil, fmt.Sprintf("a float that is none, %.40q", text)
	}
	value, _ := strconv.ParseFloat(string(text), 64)
	if math.IsInf(value, 0) {
		return nil, "the float " + strings.TrimPrefix(strconv.FormatFloat(value, 'f', -1, 64), "+") + "inity"
	}
	var space [32]byte
	digits := strconv.AppendFloat(space[:0], value, 'e', -1, 64)
	mantissa, power, _ := bytes.Cut(digits, []byte("e"))
	exponent, _ := strconv.Atoi(string(power))
	before := exponent + 1                            // digits before the point
	count := max(1, len(bytes.Trim(mantissa, "-"))-1) // digits, without the point
	format := mantissa
	if -4 < before && before <= max(15, count-1) { // as flo_to_s of Ruby's numeric.c
		format, power = strconv.AppendFloat(nil, value, 'f', -1, 64), nil
	}
	to = append(to, format...)
	if !bytes.Contains(format, []byte(".")) {
		to = append(to, ".0"...)
	}
	if power != nil {
		to = append(append(to, 'e'), power...)
	}
	return to, ""
}
