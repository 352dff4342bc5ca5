package node

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

// TestOutageIsLoggedOnce checks that the log has a warning from time to time about a Redis that is out of reach, however many
// operations fail, and a line when it is back.
func TestOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	var log lines
	n := startMember(t, Config{Redis: srv.URL(), TTL: shortTTL, Log: slog.New(slog.NewTextHandler(&log, nil))}, 4).serving()
	before := strings.Count(log.String(), "level=WARN")
	srv.Stop()
	began := time.Now()
	await(t, "the lease is lost", func() bool { return log.has(`msg="lease lost"`) })
	await(t, "attempts at another one", func() bool {
		n.outages.mu.Lock()
		defer n.outages.mu.Unlock()
		return n.outages.last[""] != nil && n.outages.last[""].Left() > 10
	})
	if err := n.Ready(); err == nil || !strings.Contains(err.Error(), "redis "+srv.Addr()+": ") {
		t.Errorf("Ready: got %v, want the error of Redis", err)
	}
	warnings, lasted := strings.Count(log.String(), "level=WARN")-before, time.Since(began)
	srv.Restart()
	await(t, "a line that it is back", func() bool { return log.has("level=INFO", `msg="redis is in reach again"`, "left_out=") })
	// That it is out of reach, that the lease is lost, and one of a busy machine.
	if most := 3 + 2*int(lasted/outageInterval); warnings > most || !log.has("level=WARN", `msg="redis is out of reach"`) {
		t.Errorf("got %d warnings in %s, want %d at most:\n%s", warnings, lasted, most, log.String())
	}
}

// TestLostUser checks that a node goes on after Redis has lost the node's user for longer than a ttl, and says meanwhile what is
// wrong.
func TestLostUser(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t)
	addUser := func() { raw(t, srv.Addr(), "ACL", "SETUSER", "lk", "on", ">secret", "~*", "&*", "+@all") }
	addUser()
	var log lines
	n := startMember(t, Config{
		Redis: strings.Replace(srv.URL(), "//", "//lk:secret@", 1), TTL: shortTTL, Log: slog.New(slog.NewTextHandler(&log, nil)),
	}, 4).serving()
	raw(t, srv.Addr(), "ACL", "DELUSER", "lk")
	n.await("a line about the user", func() bool {
		return log.has("level=WARN", `msg="no lease yet, trying again"`, "WRONGPASS", "left_out=")
	})
	if err := n.Ready(); err == nil || !strings.Contains(err.Error(), "WRONGPASS") || strings.Contains(err.Error(), "secret") {
		t.Errorf("Ready: got %v, want what Redis answers, without the password", err)
	}
	addUser()
	n.await("another lease", func() bool { return n.Ready() == nil })
}
