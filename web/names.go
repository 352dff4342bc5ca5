package web

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// withOwnNames refuses requests under the name of another site. Such a site can have its name
// lead to the node, on loopback or in a network that the browser's host reaches (DNS rebinding); to
// a browser it and the node are one site then, and its page may read answers and send changes. Where
// tokens or certificates are asked for it has neither, so this is for nodes that ask nobody for anything.
func (g *guard) withOwnNames(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ownName(r.Host, g.names) && g.wanted(r) != probe {
			newProblem(http.StatusForbidden, "%q is no name of this node, which asks for no token: want localhost, an IP address, a name without a dot, "+
				"one of node.http_names, or a token (node.token_file)", r.Host).write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ownName reports whether a host's name is one of those configured, or nobody else can own it: an
// address, localhost, what is below it, or a name without a dot, which no site of the Internet has.
func ownName(host string, configured []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = plainName(strings.Trim(host, "[]"))
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") || net.ParseIP(host) != nil || slices.Contains(configured, host)
}

// plainName is a host name as names are compared.
func plainName(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }
