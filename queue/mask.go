package queue

import "strings"

// MaskURL hides the passwords of a Redis URL. It may be one that [Open] refuses.
func MaskURL(raw string) string {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		if at := strings.LastIndex(raw, "@"); at >= 0 {
			return "***" + raw[at:] // no Redis URL: who knows what is what
		}
		return raw
	}
	_, path, _ := strings.Cut(rest, "/")
	if _, query, _ := strings.Cut(path, "?"); strings.Contains(query, "@") {
		return scheme + "://***" // a login with '/' and '?' in it, or a query with '@'
	}
	login, hosts := "", rest
	if at := strings.LastIndex(rest, "@"); at >= 0 {
		login, _, _ = strings.Cut(rest[:at], ":")
		login, hosts = login+":***@", rest[at+1:]
	}
	if strings.Contains(login, "?") {
		login = "***@" // a query with '@', and no '/' before it
	}
	if hosts, _, ok = strings.Cut(hosts, "?"); ok {
		hosts += "?***"
	}
	return scheme + "://" + login + hosts
}
