package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Tokens say who may do what. Of each kind there may be several, so that one can be
// replaced without anybody being locked out. The zero value: nobody is asked for one.
type Tokens struct {
	Read  []string // reads everything but profiles
	Push  []string // pushes jobs, and nothing else
	Admin []string // may do everything
}

// MinToken is the shortest token, bytes: a shorter one could be guessed.
const MinToken = 16

// Validate says which token is too short, unfit for a header, or of two kinds.
func (t Tokens) Validate() error {
	seen := map[string]role{}
	for _, kind := range t.kinds() {
		for i, token := range kind.tokens {
			name := fmt.Sprintf("%s token", kind.role)
			if len(kind.tokens) > 1 {
				name = fmt.Sprintf("%s token %d", kind.role, i+1)
			}
			if err := checkToken(token); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if other, ok := seen[token]; ok {
				return fmt.Errorf("%s is the same as one for %s: want different ones", name, other)
			}
			seen[token] = kind.role
		}
	}
	return nil
}

func checkToken(token string) error {
	if len(token) < MinToken {
		return fmt.Errorf("it has %d bytes, want at least %d; make one with: openssl rand -hex 32", len(token), MinToken)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("it has a space or a character beyond ASCII, which no header can carry; make one with: openssl rand -hex 32")
	}
	return nil
}

// Empty reports whether nobody is asked for a token.
func (t Tokens) Empty() bool { return len(t.Read)+len(t.Push)+len(t.Admin) == 0 }

// String counts the tokens, so that a printed configuration does not tell them.
func (t Tokens) String() string {
	return fmt.Sprintf("%d read, %d push, %d admin", len(t.Read), len(t.Push), len(t.Admin))
}

// GoString is String, for %#v.
func (t Tokens) GoString() string { return t.String() }

type tokenKind struct {
	role   role
	tokens []string
}

func (t Tokens) kinds() []tokenKind {
	return []tokenKind{{read, t.Read}, {push, t.Push}, {admin, t.Admin}}
}

// hashed is a token as it is compared: the time it takes tells neither the token nor
// its length.
type hashed struct {
	role role
	sum  [sha256.Size]byte
}

func (t Tokens) hashed() (all []hashed) {
	for _, kind := range t.kinds() {
		for _, token := range kind.tokens {
			all = append(all, hashed{kind.role, sha256.Sum256([]byte(token))})
		}
	}
	return all
}

// owner returns the token that this text is. It looks at all of them, so that the time
// it takes tells nothing of which one was near.
func owner(all []hashed, token string) (hashed, bool) {
	sum := sha256.Sum256([]byte(token))
	found := -1
	for i := range all {
		if subtle.ConstantTimeCompare(sum[:], all[i].sum[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return hashed{}, false
	}
	return all[found], true
}

// bearer is the token of the header Authorization, if there is one.
func bearer(r *http.Request) (string, bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return token, ok && strings.EqualFold(scheme, "Bearer")
}

// role is what somebody may do, and what a route asks for.
type role int

const (
	byMethod role = iota // of a route: read for GET, admin for everything else
	probe                // nothing is asked: health
	visitor              // no token is asked: the login page and its style
	read
	push
	admin
)

func (r role) String() string {
	return [...]string{"", "probe", "visitor", "read", "push", "admin"}[r]
}

// may reports whether somebody of role r may do what wants the role want.
func (r role) may(want role) bool {
	return want <= visitor || r == admin || r == want
}

// wants names the tokens that would do.
func (r role) wants() string {
	if r == admin {
		return "the admin token"
	}
	return fmt.Sprintf("the %s or the admin token", r)
}

// roleNamed is the role of the tokens with this name.
func roleNamed(name string) (role, bool) {
	for _, r := range []role{read, push, admin} {
		if r.String() == name {
			return r, true
		}
	}
	return visitor, false
}
