package web

import (
	"net"
	"net/http"
	"strings"
)

// withOwnNames refuses what a browser sends to loopback under the name of another site. Such a
// site can have its name lead to loopback (DNS rebinding); to a browser it and the node are one
// site then, and its page may read answers and send changes. Where tokens or certificates are
// asked for it has neither, so this is for nodes that ask nobody for anything.
func (g *guard) withOwnNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if onLoopback(r) && !ownName(r.Host) && g.wanted(r) != probe {
			newProblem(http.StatusForbidden, "%q is no name of this host's loopback address: want localhost, 127.0.0.1 or [::1], or a token (node.token_file)", r.Host).write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// onLoopback reports whether a request came to an address that only this host can reach.
func onLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.IP.IsLoopback()
}

// ownName reports whether nobody else can own a host's name: an address, localhost, what is
// below it, or a name without a dot, which no site of the Internet has.
func ownName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") || net.ParseIP(host) != nil
}
