package web

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A page whose name leads to the node is, to a browser, the node's own: only the name tells.
func TestNamesOfOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, unreachable, func(cfg *Config) { cfg.Names = []string{"Lowkiq.Internal"} })
	tokens := newWorld(t, unreachable, func(cfg *Config) { cfg.Tokens = someTokens })
	for _, c := range []struct {
		name, local, host string
		w                 *world
		status            int
	}{
		{"a name that leads here", "127.0.0.1", "evil.example:7948", w, 403},
		{"the same, IPv6", "::1", "evil.example:7948", w, 403},
		{"a name below localhost's", "127.0.0.1", "localhost.evil.example", w, 403},
		{"loopback", "127.0.0.1", "127.0.0.1:7948", w, 200},
		{"loopback, IPv6", "::1", "[::1]:7948", w, 200},
		{"loopback, without a port", "127.0.0.1", "127.0.0.1", w, 200},
		{"localhost", "127.0.0.1", "LocalHost:7948", w, 200},
		{"below localhost", "127.0.0.1", "lowkiq.localhost:7948", w, 200},
		{"an address cannot be led elsewhere", "127.0.0.1", "10.0.0.2:7948", w, 200},
		{"the host's own name", "127.0.1.1", "workstation:7948", w, 200},
		{"no name, HTTP/1.0", "127.0.0.1", "", w, 200},
		{"reachable by others, a name that leads there", "10.0.0.2", "evil.example:7948", w, 403},
		{"below a name of the node", "10.0.0.2", "evil.lowkiq.internal", w, 403},
		{"reachable by others, by address", "10.0.0.2", "10.0.0.2:7948", w, 200},
		{"reachable by others, published on localhost", "172.18.0.3", "localhost:7948", w, 200},
		{"reachable by others, a name of the network", "172.18.0.3", "lowkiq-2:7948", w, 200},
		{"a name of the node", "10.0.0.2", "lowkiq.INTERNAL.:7948", w, 200},
		{"a token is asked for", "127.0.0.1", "lowkiq.example:7948", tokens, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest("GET", "/api/v1/", nil)
			r.Host = c.host
			r.Header.Set("Authorization", "Bearer "+readToken)
			local := &net.TCPAddr{IP: net.ParseIP(c.local), Port: 7948}
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, net.Addr(local)))
			answer := httptest.NewRecorder()
			c.w.handler.ServeHTTP(answer, r)
			expect(t, answer, c.status)
			if c.status == 403 && !strings.Contains(answer.Body.String(), "node.token_file") {
				t.Errorf("got %s, want it to say what to do", answer.Body)
			}
		})
	}
}
