package redisdb

import (
	"strconv"
	"time"
)

// An answer of Redis is nil for a missing value, int64, string, []any of these, or an error in a
// pipeline. Each function below decodes a single kind, and returns the zero value for the others.

// Text decodes a string.
func Text(reply any) string {
	text, _ := reply.(string)
	return text
}

// Bytes decodes a string, nil if it is missing.
func Bytes(reply any) []byte {
	if text, ok := reply.(string); ok {
		return []byte(text)
	}
	return nil
}

// Int decodes a number, also a number that is stored as a string.
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

// List decodes a list.
func List(reply any) []any {
	list, _ := reply.([]any)
	return list
}

// Texts decodes a list of strings.
func Texts(reply any) []string {
	list := List(reply)
	texts := make([]string, len(list))
	for i := range list {
		texts[i] = Text(list[i])
	}
	return texts
}

// Map decodes a hash.
func Map(reply any) map[string]string {
	list := List(reply)
	fields := make(map[string]string, len(list)/2)
	for i := 0; i+1 < len(list); i += 2 {
		fields[Text(list[i])] = Text(list[i+1])
	}
	return fields
}

// Score decodes the score of a sorted set. ok is false if it is missing.
func Score(reply any) (score float64, ok bool) {
	text, ok := reply.(string)
	score, _ = strconv.ParseFloat(text, 64)
	return score, ok
}

// Scanned decodes the answer to a SCAN: names, or names and values, and the next cursor.
func Scanned(reply any) (found []string, next string) {
	list := List(reply)
	if len(list) != 2 {
		return nil, "0"
	}
	return Texts(list[1]), Text(list[0])
}

// Micros decodes unix microseconds. "" is the zero time.
func Micros(reply any) time.Time {
	us, err := strconv.ParseInt(Text(reply), 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMicro(us)
}
