//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lowkiq/lowkiq/queue/audit"
)

// askRedis breaks a story's Redis by hand.
func askRedis(ts *testscript.TestScript, neg bool, args []string) {
	client := redis.NewClient(&redis.Options{Addr: ts.Getenv("REDIS"), DisableIdentity: true, Protocol: 2})
	defer client.Close()
	words := make([]any, len(args))
	for i, arg := range args {
		words[i] = arg
	}
	answer, err := client.Do(context.Background(), words...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		ts.Fatalf("redis %s: %v", strings.Join(args, " "), err)
	}
	fmt.Fprintln(ts.Stdout(), answer)
}

func TestColumns(t *testing.T) {
	t.Parallel()
	rows := [][]string{{"NAME", "N", "LAG", "ERROR"}, {"żółw", "7", "1.5s", "boom"}, {"b", "1234", "-", "no such account at all"}}
	want := "NAME     N   LAG  ERROR\n" + "żółw     7  1.5s  boom\n" + "b     1234     -  no such account at all"
	if got := strings.Join(columns(rows, 0), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, line := range columns(rows, 24) {
		if n := len([]rune(line)); n > 24 {
			t.Errorf("%q: got %d characters, want at most 24", line, n)
		}
	}
	if got, want := strings.Join(columns(rows, 10), "\n"), "NAME     …\nżółw     7\nb     1234"; got != want {
		t.Errorf("ten characters: got\n%s\nwant\n%s", got, want)
	}
	if got := strings.Join(columns(rows[:1], 0), "\n"); got != "NAME  N  LAG  ERROR" {
		t.Errorf("without rows: got %q", got)
	}
}

// An id need not be text.
func TestAnswerOfCheck(t *testing.T) {
	t.Parallel()
	answer := answerOf(audit.Report{Faults: []audit.Fault{{ID: "\xff", Shard: 0}, {ID: "a", Shard: -1}}}, 0)
	if f := answer.Faults[0]; f.Text != nil || string(f.Base64) != "\xff" || f.Shard == nil {
		t.Errorf("got %+v, want the id as bytes, and a shard", f)
	}
	if f := answer.Faults[1]; f.ID() != "a" || f.Base64 != nil || f.Shard != nil {
		t.Errorf("got %+v, want the id as text, and no shard", f)
	}
}
