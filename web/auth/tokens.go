package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Tokens say who may do what. Of each kind there may be several, so that one can be
// replaced while requests with the other are served. The zero value: no request needs one.
type Tokens struct {
	Read  []string // reads everything but profiles
	Push  []string // pushes jobs, and nothing else
	Admin []string // may do everything
}

// MinToken is the shortest token, bytes: a shorter one could be guessed.
const MinToken = 16

// Validate says which token is too short, unfit for a header, or of two kinds.
func (t Tokens) Validate() error {
	seen := map[string]Role{}
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

// Empty reports whether no request needs a token.
func (t Tokens) Empty() bool { return len(t.Read)+len(t.Push)+len(t.Admin) == 0 }

// String counts the tokens, so that a printed configuration does not tell them.
func (t Tokens) String() string {
	return fmt.Sprintf("%d read, %d push, %d admin", len(t.Read), len(t.Push), len(t.Admin))
}

// GoString is String, for %#v.
func (t Tokens) GoString() string { return t.String() }

type tokenKind struct {
	role   Role
	tokens []string
}

func (t Tokens) kinds() []tokenKind {
	return []tokenKind{{Read, t.Read}, {Push, t.Push}, {Admin, t.Admin}}
}

// hashed is a token as it is compared: the time it takes tells neither the token nor
// its length.
type hashed struct {
	role Role
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
