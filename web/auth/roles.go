package auth

import "fmt"

// Role is what the sender of a request may do, and what a route asks for.
type Role int

// The roles. A token has one of the last three.
const (
	Unset     Role = iota
	Probe          // nothing is asked: health
	Anonymous      // no token is asked: the login page and its style
	Read
	Push
	Admin
)

func (r Role) String() string {
	return [...]string{"", "probe", "anonymous", "read", "push", "admin"}[r]
}

// may reports whether a sender with role r may do what wants the role want.
func (r Role) may(want Role) bool {
	return want <= Anonymous || r == Admin || r == want
}

// wants names the tokens that would do.
func (r Role) wants() string {
	if r == Admin {
		return "the admin token"
	}
	return fmt.Sprintf("the %s or the admin token", r)
}

// roleNamed is the role of the tokens with this name.
func roleNamed(name string) (Role, bool) {
	for _, r := range []Role{Read, Push, Admin} {
		if r.String() == name {
			return r, true
		}
	}
	return Anonymous, false
}
