package redisdb

import (
	"fmt"
	"strings"
)

// An answer of a kind that a command does not give is no data: a proxy or another program answers in Redis's place, or
// go-redis has taken one answer for another. Read as an empty answer it would say that a lease or a record is gone.

// answerKind is a set of kinds of answers.
type answerKind uint8

const (
	isNil answerKind = 1 << iota
	isNumber
	isText
	isList
)

// kinds are what commands answer. Another command may answer anything but nil, as scripts do.
var kinds = map[string]answerKind{
	"GET": isText | isNil, "HGET": isText | isNil, "ZSCORE": isText | isNil, "SET": isText, "TYPE": isText, "XADD": isText,
	"LPOS": isNumber | isNil, "DEL": isNumber, "UNLINK": isNumber, "EXISTS": isNumber, "PTTL": isNumber, "HSET": isNumber, "HDEL": isNumber,
	"HLEN": isNumber, "LLEN": isNumber, "ZCOUNT": isNumber, "PUBLISH": isNumber,
	"MGET": isList, "HMGET": isList, "HGETALL": isList, "LRANGE": isList, "ZRANGE": isList, "ZREVRANGE": isList, "ZRANGEBYLEX": isList,
	"XRANGE": isList, "XREVRANGE": isList, "SCAN": isList, "HSCAN": isList, "TIME": isList,
}

// checkKind says what is wrong with the kind of an answer to a command, or with how many answers it has.
func checkKind(cmd []any, reply any) error {
	name, _ := cmd[0].(string)
	got, n := kindOf(reply)
	want, listed := kinds[name]
	switch {
	case !listed && got != isNil, want&got != 0 && (got != isList || n == countOf(name, cmd, n)):
		return nil
	case name == "SET" && got == isNil && conditional(cmd):
		return nil
	}
	return wrongKind(name, reply)
}

// wrongKind is the error of an answer that cannot be. It begins as go-redis's own do: that may pass.
func wrongKind(name string, reply any) error {
	text := "nil"
	if reply != nil {
		text = fmt.Sprintf("%T %.60v", reply, reply)
	}
	return fmt.Errorf("redis: the answer to %s is %s, which Redis does not answer to it; look for a proxy, or a setting of the cluster, that does", name, text)
}

func kindOf(reply any) (answerKind, int) {
	switch v := reply.(type) {
	case nil:
		return isNil, 0
	case int64:
		return isNumber, 0
	case string:
		return isText, 0
	case []any:
		return isList, len(v)
	}
	return 0, 0
}

// countOf is how many elements the answer to a command has, or n if any number is right.
func countOf(name string, cmd []any, n int) int {
	switch name {
	case "MGET":
		return len(cmd) - 1
	case "HMGET":
		return len(cmd) - 2
	case "TIME", "SCAN", "HSCAN":
		return 2
	case "HGETALL":
		return n &^ 1
	}
	return n
}

// conditional reports whether a SET does nothing, and answers nil, if the key is or is not there.
func conditional(set []any) bool {
	for _, arg := range set[3:] {
		if text, ok := arg.(string); ok && (strings.EqualFold(text, "NX") || strings.EqualFold(text, "XX")) {
			return true
		}
	}
	return false
}
