package redistest

import (
	"slices"
	"testing"
)

func TestParseRequest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		words      []string
	}{
		{"bulk strings", "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", []string{"GET", "k"}},
		{"line ends and nothing inside words", "*3\r\n$4\r\nECHO\r\n$4\r\n\r\n$1\r\n$0\r\n\r\n", []string{"ECHO", "\r\n$1", ""}},
		{"inline", "PING  hello\r\n", []string{"PING", "hello"}},
		{"no words", "*0\r\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for end := range len(c.text) {
				if _, length, err := parseRequest([]byte(c.text[:end])); length != 0 || err != nil {
					t.Fatalf("first %d bytes: got length %d, %v, want an incomplete request", end, length, err)
				}
			}
			words, length, err := parseRequest([]byte(c.text + "*1\r\n"))
			if err != nil || length != len(c.text) || !slices.Equal(words, c.words) {
				t.Errorf("got %q, length %d, %v, want %q, length %d", words, length, err, c.words, len(c.text))
			}
		})
	}
}

func TestReplyLength(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		push       bool
	}{
		{"status", "+OK\r\n", false},
		{"error", "-ERR no\r\n", false},
		{"number", ":12\r\n", false},
		{"bulk", "$4\r\n\r\n+x\r\n", false},
		{"null bulk", "$-1\r\n", false},
		{"null array", "*-1\r\n", false},
		{"empty array", "*0\r\n", false},
		{"nested array", "*2\r\n*2\r\n:1\r\n$1\r\na\r\n$-1\r\n", false},
		{"map", "%1\r\n+server\r\n$5\r\nredis\r\n", false},
		{"set", "~1\r\n:1\r\n", false},
		{"double", ",1.5\r\n", false},
		{"null", "_\r\n", false},
		{"boolean", "#t\r\n", false},
		{"verbatim", "=7\r\ntxt:abc\r\n", false},
		{"attribute before its value", "|1\r\n+ttl\r\n:1\r\n+OK\r\n", false},
		{"push", ">2\r\n+message\r\n$1\r\nx\r\n", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for end := range len(c.text) {
				if length, _, err := replyLength([]byte(c.text[:end])); length != 0 || err != nil {
					t.Fatalf("first %d bytes: got length %d, %v, want an incomplete reply", end, length, err)
				}
			}
			length, answers, err := replyLength([]byte(c.text + "+"))
			if err != nil || length != len(c.text) || answers == c.push {
				t.Errorf("got length %d, answers %t, %v, want %d, %t", length, answers, err, len(c.text), !c.push)
			}
		})
	}
}

func TestWhatIsNotRESPIsAnError(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"*x\r\n", "*1\r\n:1\r\n", "*1\r\n$-1\r\n", "*1\r\n\r\n"} {
		if _, _, err := parseRequest([]byte(text)); err == nil {
			t.Errorf("request %q: got nil, want an error", text)
		}
	}
	for _, text := range []string{"HTTP/1.1 200\r\n", "\r\n", "$x\r\n", "*1\r\n?\r\n"} {
		if _, _, err := replyLength([]byte(text)); err == nil {
			t.Errorf("reply %q: got nil, want an error", text)
		}
	}
}
