package dashboard

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
)

// result is how an order went.
type result struct {
	Deed, Done string
	Danger     bool
	Queue      string
	Node       string
	Instance   string // that heard of a drain
	Kind       string
	Back       string

	Jobs     bool // it is about jobs; else Sentence says what happened
	Sentence string
	Changed  int
	Asked    int // ids that were named; 0 = a list
	Skipped  int // jobs that were gone when their turn came
	SoFar    int // changed by the steps before
	Left     int // jobs of the list that have not been looked at
	Cursor   string
	Err      error  `json:"-"`
	Trouble  string // Err, for people

	At time.Time // when it was done
}

// Total is what all steps together changed.
func (r result) Total() int { return r.SoFar + r.Changed }

// Missed is how many of the named ids were not changed.
func (r result) Missed() int {
	if r.Asked == 0 {
		return r.Skipped
	}
	return r.Asked - r.Changed
}

// resultLife is how long the page of a result can be opened.
const resultLife = 10 * time.Minute

// Bounds of what an address carries: proxies take headers of 4 KiB at least.
const (
	backBytes    = 1 << 10
	troubleBytes = 300
)

// results puts what orders did into the address of the page that says so, sealed: nothing is
// stored, every node with the same secret shows it, and nobody can forge or read one.
type results struct {
	keys  []cipher.AEAD // the first one seals, all open
	bound []byte        // the cluster's name
	now   func() time.Time
}

func newResults(cluster string, secrets [][]byte) (*results, error) {
	if len(secrets) == 0 {
		secrets = [][]byte{[]byte(rand.Text())}
	}
	r := &results{bound: []byte(cluster), now: time.Now}
	for _, secret := range secrets {
		key, err := hkdf.Key(sha256.New, secret, nil, "lowkiq dashboard results", 32)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		sealed, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		r.keys = append(r.keys, sealed)
	}
	return r, nil
}

// seal returns the token by which a result is found.
func (r *results) seal(one result) (string, error) {
	one.At = r.now()
	one.Trouble = cutText(one.Trouble, troubleBytes)
	if len(one.Back) > backBytes {
		one.Back = "/"
	}
	text, err := json.Marshal(one)
	if err != nil {
		return "", fmt.Errorf("result: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(r.keys[0].Seal(nil, nil, text, r.bound)), nil
}

func (r *results) open(token string) (one result, ok bool) {
	sealed, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return one, false
	}
	for _, key := range r.keys {
		text, err := key.Open(nil, nil, sealed, r.bound)
		if err == nil && json.Unmarshal(text, &one) == nil {
			return one, r.now().Sub(one.At) <= resultLife
		}
	}
	return one, false
}
