package auth

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	readToken  = "read-token-0123456789"
	adminToken = "admin-token-0123456789"
	oldToken   = "admin-token-of-yesterday"
)

var someTokens = Tokens{Read: []string{readToken}, Admin: []string{adminToken, oldToken}}

func TestNextIsLocal(t *testing.T) {
	t.Parallel()
	for next, want := range map[string]string{
		"": "/", "/": "/", "/queues/a%2Fb?x=1": "/queues/a%2Fb?x=1", "queues": "/",
		"//evil.example": "/", "///evil.example": "/", `/\evil.example`: "/", `\\evil.example`: "/", "https://evil.example": "/",
		"https:/evil.example": "/", "javascript:alert(1)": "/", "/\t/evil.example": "/", "/a\r\nSet-Cookie: x=y": "/", "/%zz": "/",
		"/" + strings.Repeat("a", nextLimit): "/",
	} {
		if got := nextPath(next); got != want {
			t.Errorf("%q: got %q, want %q", next, got, want)
		}
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	at := func(tokens Tokens, d time.Duration) sessions {
		return sessions{tokens.hashAll(), func() time.Time { return now.Add(d) }}
	}
	here := at(someTokens, 0)
	admins, _ := findOwner(here.tokens, oldToken)
	readers, _ := findOwner(here.tokens, readToken)
	value, reading := here.sealCookie(admins), here.sealCookie(readers)
	until := strconv.FormatInt(now.Add(sessionLife).Unix(), 10)
	for _, c := range []struct {
		name  string
		s     sessions
		value string
		want  Role
	}{
		{"here", here, value, Admin},
		{"another node with the token", at(Tokens{Admin: []string{oldToken}}, 0), value, Admin},
		{"a node where the token was rotated away", at(Tokens{Admin: []string{adminToken}, Read: []string{readToken}}, 0), value, Anonymous},
		{"just before its end", at(someTokens, sessionLife-time.Second), value, Admin},
		{"at its end", at(someTokens, sessionLife), value, Anonymous},
		{"read", here, reading, Read},
		{"read made admin", here, strings.Replace(reading, "read", "admin", 1), Anonymous},
		{"prolonged", here, strings.Replace(value, until, "9"+until, 1), Anonymous},
		{"cut", here, value[:len(value)-1], Anonymous},
		{"no seal", here, "admin." + until + ".", Anonymous},
		{"no role", here, "." + until + ".x", Anonymous},
		{"a role of routes", here, "anonymous." + until + ".x", Anonymous},
		{"no expiry", here, "admin.x", Anonymous},
		{"empty", here, "", Anonymous},
	} {
		want := access{role: c.want}
		if c.want > Anonymous {
			want.until = time.Unix(now.Add(sessionLife).Unix(), 0)
		}
		if got := c.s.openCookie(c.value); got != want {
			t.Errorf("%s: got %s until %s, want %s until %s", c.name, got.role, got.until, want.role, want.until)
		}
	}
}

// An address is that of a host, or of a network whose host may choose its own.
func TestSourceOfALogin(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1", "[::ffff:192.0.2.1]:5": "192.0.2.1", "[2001:db8::1:2]:5": "2001:db8::/64", "pipe": "pipe",
	} {
		if got := sourceOf(&http.Request{RemoteAddr: from}); got != want {
			t.Errorf("%s: got %s, want %s", from, got, want)
		}
	}
}

func TestLoginAttemptsAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	a := newAttempts(func() time.Time { return now })
	count := func() (n int) {
		for range 100 {
			if a.take("192.0.2.1") {
				n++
			}
		}
		return n
	}
	if got := count(); got != loginsASecond {
		t.Errorf("at once: got %d, want %d", got, loginsASecond)
	}
	now = now.Add(time.Second)
	if got := count(); got != loginsASecond {
		t.Errorf("a second later: got %d, want %d", got, loginsASecond)
	}
	now = now.Add(time.Hour)
	if got := count(); got != loginsASecond {
		t.Errorf("after an hour: got %d, want %d", got, loginsASecond)
	}
	if !a.take("192.0.2.2") {
		t.Error("another address: got it refused, want it to have attempts of its own")
	}
	total := 0
	for i := range 10 * loginsInTotal {
		if a.take(strconv.Itoa(i)) {
			total++
		}
	}
	if total > loginsInTotal {
		t.Errorf("many addresses: got %d at once, want %d at most", total, loginsInTotal)
	}
	for i := range 2 * loginSources {
		a.take("other" + strconv.Itoa(i))
	}
	if len(a.of) > loginSources {
		t.Errorf("got %d addresses remembered, want %d at most", len(a.of), loginSources)
	}
	now = now.Add(time.Hour)
	if !a.take("192.0.2.3") {
		t.Error("an hour after many addresses: got it refused")
	}
}
