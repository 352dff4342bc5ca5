package auth

import (
	"html"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// LocalPath returns a path of this node as it is, and "/" for any other text, so that nobody can make a
// page lead to another site.
func LocalPath(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil ||
		!strings.HasPrefix(next, "/") || strings.HasPrefix(next, "//") || strings.ContainsAny(next, "\\\t\r\n") {
		return "/"
	}
	return next
}

// Root returns the relative URL of the node's root, as seen from the page of a request: "./" at /nodes,
// "../../" at /queues/orders/jobs. A proxy or a mux may serve the node below any prefix, so pages
// link relative to it, with <base href>.
func Root(r *http.Request) string {
	if depth := strings.Count(r.URL.EscapedPath(), "/"); depth > 1 {
		return strings.Repeat("../", depth-1)
	}
	return "./"
}

// Redirect sends a browser to a local path with 303. Unlike that of [http.Redirect], Location is relative, so
// it stays below the prefix that the browser uses for the node.
func Redirect(w http.ResponseWriter, r *http.Request, to string) {
	at := Root(r) + strings.TrimPrefix(to, "/")
	w.Header().Set("Location", at)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(http.StatusSeeOther)
	_, _ = io.WriteString(w, `<a href="`+html.EscapeString(at)+`">See other</a>`+"\n")
}
