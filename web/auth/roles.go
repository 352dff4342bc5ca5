package auth

import "fmt"

// Role says what the sender of a request may do, or what a route needs.
type Role int

// The roles. Tokens have the role Read, Push or Admin.
const (
	Unset     Role = iota
	Probe          // for health checks, which need nothing
	Anonymous      // for the login page and its style, which need no token
	Read
	Push
	Admin
)

func (r Role) String() string {
	return [...]string{"", "probe", "anonymous", "read", "push", "admin"}[r]
}

// may reports whether a sender with role r may use a route that needs the role want.
func (r Role) may(want Role) bool {
	return want <= Anonymous || r == Admin || r == want
}

// nameTokens names the tokens that a route with role r accepts.
func (r Role) nameTokens() string {
	if r == Admin {
		return "the admin token"
	}
	return fmt.Sprintf("the %s or the admin token", r)
}

// roleNamed returns the role with this name. Only roles of tokens have names here.
func roleNamed(name string) (Role, bool) {
	for _, r := range []Role{Read, Push, Admin} {
		if r.String() == name {
			return r, true
		}
	}
	return Anonymous, false
}
