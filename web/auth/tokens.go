package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Tokens says who may do what. There may be several of each kind, so that a token can be replaced while
// the old token still works. With the zero value no request needs a token.
type Tokens struct {
	Read  []string // reads everything but profiles
	Push  []string // pushes jobs, and nothing else
	Admin []string // may do everything
}

// MinToken is the minimum length of a token, bytes. Shorter tokens could be guessed.
const MinToken = 16

// minLetters is the minimum number of different characters in a token. A random token of 16 hexadecimal digits has fewer with a
// probability of 1 in 2 million.
const minLetters = 5

// Validate returns an error if a token is too short, unfit for a header, or of two kinds.
func (t Tokens) Validate() error {
	seen := map[string]Role{}
	for _, kind := range t.byRole() {
		for i, token := range kind.tokens {
			name := fmt.Sprintf("%s token", kind.role)
			if len(kind.tokens) > 1 {
				name = fmt.Sprintf("%s token %d", kind.role, i+1)
			}
			if err := checkToken(token); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if other, ok := seen[token]; ok {
				return fmt.Errorf("%s is also a token for %s; the tokens of roles must differ", name, other)
			}
			seen[token] = kind.role
		}
	}
	return nil
}

func checkToken(token string) error {
	if len(token) < MinToken {
		return fmt.Errorf("it has %d bytes, must have at least %d; make a token with: openssl rand -hex 32", len(token), MinToken)
	}
	letters := map[rune]bool{}
	for _, r := range token {
		letters[r] = true
	}
	if len(letters) < minLetters {
		return fmt.Errorf("it has %d different characters, must have at least %d so that nobody can guess it; make a token with: openssl rand -hex 32", len(letters), minLetters)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("it has a space or a character beyond ASCII, which no header can carry; make a token with: openssl rand -hex 32")
	}
	return nil
}

// Empty reports whether no request needs a token.
func (t Tokens) Empty() bool { return len(t.Read)+len(t.Push)+len(t.Admin) == 0 }

// String counts the tokens, so that a printed configuration does not reveal them.
func (t Tokens) String() string {
	return fmt.Sprintf("%d read, %d push, %d admin", len(t.Read), len(t.Push), len(t.Admin))
}

// GoString is String, for %#v.
func (t Tokens) GoString() string { return t.String() }

type tokenKind struct {
	role   Role
	tokens []string
}

func (t Tokens) byRole() []tokenKind {
	return []tokenKind{{Read, t.Read}, {Push, t.Push}, {Admin, t.Admin}}
}

// hashed is the hash of a token. The time to compare hashes reveals neither the token nor its length.
type hashed struct {
	role Role
	sum  [sha256.Size]byte
}

func (t Tokens) hashAll() (all []hashed) {
	for _, kind := range t.byRole() {
		for _, token := range kind.tokens {
			all = append(all, hashed{kind.role, sha256.Sum256([]byte(token))})
		}
	}
	return all
}

// findOwner returns the known token with this text. It compares with all tokens, so that the time that it
// takes does not reveal which token was close.
func findOwner(all []hashed, token string) (hashed, bool) {
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

// bearerToken returns the token of the header Authorization, and whether there is any.
func bearerToken(r *http.Request) (string, bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return token, ok && strings.EqualFold(scheme, "Bearer")
}
