package main

import (
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// A supervisor starts a node again whose user Redis does not know, because a person may mend that at Redis. It does not after a
// mistake that only this host's configuration can have.
func TestExitCodeOfDeniedNode(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	for url, want := range map[string]int{
		strings.Replace(redis.URL(), "//", "//lk:secret@", 1):       exit.Unreachable,
		strings.Replace(redis.URL(), "redis:", "redis+cluster:", 1): exit.Usage,
		strings.Replace(redis.URL(), "/0", "/99", 1):                exit.Usage,
	} {
		client, err := protocol.Open(protocol.Config{Redis: url})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		_, err = client.Check(t.Context(), false)
		if got := exit.CodeOf(runError(err, false)); got != want || err == nil {
			t.Errorf("%s: got exit code %d of %v, want %d", url, got, err, want)
		}
	}
}
