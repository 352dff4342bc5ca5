// Package clitest has the words that the scripts of all commands add to those of testscript.
package clitest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

// Exits is the word "exits CODE command…". The command must end with this exit code.
func Exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("got exit code %d, want %d", got, want)
	}
}

// Redis is the word "redis COMMAND…". It sends a command to the Redis at $REDIS, without lowkiq. The answer goes to stdout.
func Redis(ts *testscript.TestScript, neg bool, args []string) {
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

// Main runs the tests of a package, and the programs that scripts call. It fails a run that leaves goroutines.
func Main(m *testing.M, programs map[string]func()) { testscript.Main(leakless{m}, programs) }

// leakless fails a run that leaves goroutines.
type leakless struct{ *testing.M }

func (l leakless) Run() int {
	code := l.M.Run()
	if err := leaktest.Check(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Patience is long enough for a busy machine. A test that passes does not wait for it.
const Patience = 90 * time.Second

// Eventually waits for a condition, and reports whether it came true.
func Eventually(condition func() bool) bool {
	for deadline := time.Now().Add(Patience); !condition(); {
		if time.Now().After(deadline) {
			return false
		}
		<-time.After(50 * time.Millisecond) // some checks start a process
	}
	return true
}

// Get asks a node at address, without starting a process. It returns the body of an answer with code 200, "" otherwise.
func Get(address, path string) string {
	once := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: Patience}
	answer, err := once.Get("http://" + address + path)
	if err != nil {
		return ""
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}
