package redisdb

import (
	"strconv"
	"time"
)

// What Redis answers is nil for what is missing, int64, string, []any of these, or in a
// pipeline an error. The functions below read one of these kinds; of another one they give
// the zero value.

// Text reads a string.
func Text(reply any) string {
	text, _ := reply.(string)
	return text
}

// Bytes reads a string; nil if it is missing.
func Bytes(reply any) []byte {
	if text, ok := reply.(string); ok {
		return []byte(text)
	}
	return nil
}

// Int reads a number, also one that is stored as a string.
func Int(reply any) int64 {
	switch v := reply.(type) {
	case int64:
		return v
	case string:
		n, _ := strconv.ParseInt(v, 10, 64)
		return n
	}
	return 0
}

// List reads a list.
func List(reply any) []any {
	list, _ := reply.([]any)
	return list
}

// Texts reads a list of strings.
func Texts(reply any) []string {
	list := List(reply)
	texts := make([]string, len(list))
	for i := range list {
		texts[i] = Text(list[i])
	}
	return texts
}

// Map reads a hash.
func Map(reply any) map[string]string {
	list := List(reply)
	fields := make(map[string]string, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		fields[Text(list[i])] = Text(list[i+1])
	}
	return fields
}

// Score reads the score of a sorted set; ok is false if it is missing.
func Score(reply any) (score float64, ok bool) {
	text, ok := reply.(string)
	score, _ = strconv.ParseFloat(text, 64)
	return score, ok
}

// Scanned reads the answer of a SCAN: names, or names and values, and the cursor of the next.
func Scanned(reply any) (found []string, next string) {
	list := List(reply)
	if len(list) != 2 {
		return nil, "0"
	}
	return Texts(list[1]), Text(list[0])
}

// Micros reads unix microseconds; "" is the zero time.
func Micros(reply any) time.Time {
	us, err := strconv.ParseInt(Text(reply), 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMicro(us)
}
