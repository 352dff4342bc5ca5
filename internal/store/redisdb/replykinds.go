package redisdb

import (
	"fmt"
	"strings"
)

// An answer of the wrong kind is not data. A proxy or another program has answered in place of
// Redis, or go-redis has mixed up two answers. If it were read as an empty answer, a lease or a
// record would seem to be gone.

// answerKind is a set of kinds of answers.
type answerKind uint8

const (
	isNil answerKind = 1 << iota
	isNumber
	isText
	isList
)

// kinds has the kinds of answers of commands. A command that is not listed, like a script, may
// answer anything but nil.
var kinds = map[string]answerKind{
	"GET": isText | isNil, "HGET": isText | isNil, "ZSCORE": isText | isNil, "SET": isText, "TYPE": isText, "XADD": isText,
	"LPOS": isNumber | isNil, "ZRANK": isNumber | isNil, "ZCARD": isNumber, "DEL": isNumber, "UNLINK": isNumber, "EXISTS": isNumber, "PTTL": isNumber, "HSET": isNumber, "HDEL": isNumber,
	"HLEN": isNumber, "HSTRLEN": isNumber, "LLEN": isNumber, "ZCOUNT": isNumber, "PUBLISH": isNumber, "XLEN": isNumber,
	"MGET": isList, "HMGET": isList, "HGETALL": isList, "LRANGE": isList, "ZRANGE": isList, "ZREVRANGE": isList, "ZRANGEBYLEX": isList,
	"XRANGE": isList, "XREVRANGE": isList, "SCAN": isList, "HSCAN": isList, "TIME": isList,
}

// checkKind returns an error if the answer to a command has the wrong kind or the wrong number of
// elements.
func checkKind(cmd []any, reply any) error {
	name, _ := cmd[0].(string)
	got, n := kindOf(reply)
	want, listed := kinds[name]
	switch {
	case !listed && got != isNil, want&got != 0 && (got != isList || n == wantedCount(name, cmd, n)):
		return nil
	case name == "SET" && got == isNil && isConditional(cmd):
		return nil
	}
	return wrongKind(name, reply)
}

// wrongKind returns the error of an impossible answer. It begins like the errors of go-redis, so
// that it counts as transient.
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

// wantedCount returns how many elements the answer to a command has, or n if any number is right.
func wantedCount(name string, cmd []any, n int) int {
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

// isConditional reports whether a SET depends on whether the key exists, and may answer nil.
func isConditional(set []any) bool {
	for _, arg := range set[3:] {
		if text, ok := arg.(string); ok && (strings.EqualFold(text, "NX") || strings.EqualFold(text, "XX")) {
			return true
		}
	}
	return false
}
