//go:build linux

package browser

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const adminToken = "a-token-of-the-browser-tests"

// beyond is an address of this machine, beyond loopback if it has one: without TLS browsers
// treat such a page with more suspicion, and send other headers from it.
func beyond() string {
	addresses, _ := net.InterfaceAddrs()
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	return "127.0.0.1"
}

// withToken starts one more node, which asks for a token, where operators would look for it.
func (w *world) withToken(name string) {
	w.t.Helper()
	dir := w.t.TempDir()
	text, err := os.ReadFile(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	token, config := filepath.Join(dir, "token"), filepath.Join(dir, "node.yaml")
	closed := strings.Replace(string(text), "node: {", fmt.Sprintf("node: {token_file: %q, ", token), 1)
	for file, content := range map[string]string{token: adminToken + "\n", config: closed} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	w.nodes[name] = launch(w.t, name, binary(w.t), "run", "--config", config, "--name", name, "--http", net.JoinHostPort(beyond(), "0"),
		"--bind", "127.0.0.1:0")
	await(w.t, "node "+name+" is ready", patience, func() bool { return ready(w.url(name)) })
}

// logIn fills in the form and sends it.
func (b *tab) logIn(token string) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`(document.querySelector("#token").value = %q, document.querySelector("form").requestSubmit(), true)`, token))
}

// TestLogin checks that a node with a token shows nothing before the login, the requested page after it, and nothing
// after the logout.
func TestLogin(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	w := newWorld(t)
	w.withToken("n1")
	node := w.url("n1")
	for _, l := range looks {
		t.Run(l.String(), func(t *testing.T) {
			b := newTab(t, browser, l)
			form := `document.querySelector("#token") !== null`
			b.allow(node + "/login") // a wrong token is answered by 401
			b.open(node + "/queues/idle/jobs?state=scheduled")
			b.sees("the form", form)
			if text := eval[string](b, "document.body.innerText"); strings.Contains(text, "idle") {
				t.Errorf("before the log-in the page says %q", text)
			}
			for _, o := range b.objections() {
				t.Error(o)
			}
			b.shoot("login")
			b.logIn("not the token at all")
			b.sees("the refusal", `document.querySelector("[role=alert]") !== null`)
			for _, o := range b.objections() {
				t.Error(o)
			}
			b.shoot("login-refused")
			b.logIn(adminToken)
			b.sees("the page that was asked for", `location.pathname === "/queues/idle/jobs" && location.search === "?state=scheduled"`)
			b.sees("no token in sight", fmt.Sprintf("!document.documentElement.outerHTML.includes(%q) && !document.cookie", adminToken))
			eval[bool](b, `(document.querySelector("form[action='./logout']").requestSubmit(), true)`)
			b.sees("the form again", form)
			b.open(node + "/nodes")
			b.sees("the form after the log-out", form)
			for _, fault := range b.wrong() {
				t.Error(fault)
			}
		})
	}
}

// listen opens a port at an address of [beyond].
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(beyond(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}
