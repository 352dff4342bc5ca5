package redisdb

import (
	"bufio"
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// TestImpossibleAnswers checks that an answer of a wrong kind is an error that names the command, wherever it is read.
// A server that answers nil to everything is an example.
func TestImpossibleAnswers(t *testing.T) {
	t.Parallel()
	db, ctx := openAt(t, answering(t, "$-1\r\n")), t.Context()
	for name, ask := range map[string]func() (any, error){
		"MGET":  func() (any, error) { return db.Do(ctx, "read", "MGET", "a", "b") },
		"SET":   func() (any, error) { return db.Do(ctx, "write", "SET", "a", "1", "PX", 10) },
		"HLEN":  func() (any, error) { return db.Pipeline(ctx, "count", Cmd{"GET", "a"}, Cmd{"HLEN", "a"}) },
		"TIME":  func() (any, error) { return db.Time(ctx) },
		"lease": func() (any, error) { return db.Run(ctx, db.Scripts.Lease, []string{"a"}, "v", 1) },
		"push": func() (any, error) {
			calls := []*Call{{Script: db.Scripts.Push, Keys: []string{"a"}}, {Script: db.Scripts.Push, Keys: []string{"a"}}}
			db.RunAll(ctx, calls)
			return nil, calls[1].Err
		},
		"claim": func() (any, error) {
			got, _, err := db.RunReplicated(ctx, db.Scripts.Claim, []string{"a"})
			return got, err
		},
	} {
		got, err := ask()
		if err == nil || !strings.Contains(err.Error(), "the answer to "+name+" is nil") || !Transient(err) {
			t.Errorf("%s: got %v, %v; want a transient error that names it", name, got, err)
		}
	}
	for _, missing := range [][]any{{"GET", "a"}, {"HGET", "a", "b"}, {"ZSCORE", "a", "b"}, {"LPOS", "a", "b"}, {"SET", "a", "1", "NX"}} {
		if got, err := db.Do(ctx, "read", missing...); got != nil || err != nil {
			t.Errorf("%v: got %v, %v; want that it is missing", missing, got, err)
		}
	}
	short := openAt(t, answering(t, "*1\r\n$-1\r\n"))
	if got, err := short.Do(ctx, "read", "MGET", "a", "b"); err == nil {
		t.Errorf("one value for two keys: got %v", got)
	}
}

func openAt(t *testing.T, addr string) *DB {
	t.Helper()
	db, err := Open(Config{URL: "redis://" + addr, Cluster: "c", Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// answering is a server that answers the same to every command.
func answering(t *testing.T, answer string) (addr string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(t.Context(), func() { _ = conn.Close() })
			go func() {
				for r := bufio.NewReader(conn); ; {
					if line, err := r.ReadString('\n'); err != nil {
						return
					} else if line[0] == '*' { // a command begins
						_, _ = conn.Write([]byte(answer))
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}
