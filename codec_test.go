package lowkiq_test

import (
	"bytes"
	"strings"
	"testing"
)

// The codec of Example_encrypted, while keys are rotated.
func TestEncryptedKeysRotate(t *testing.T) {
	t.Parallel()
	secretOf := func(letter string) secret {
		return secret{bytes.Repeat([]byte(letter), 32), bytes.Repeat([]byte(letter+letter), 16)}
	}
	both := map[byte]secret{1: secretOf("a"), 2: secretOf("b")}
	stored := map[byte][]byte{}
	for newest := range both {
		codec, err := encrypted(newest, both)
		if err != nil {
			t.Fatal(err)
		}
		if stored[newest], err = codec.Encode([]byte("4711")); err != nil || stored[newest][0] != newest {
			t.Fatalf("key %d: got %x, %v, want the key's number first", newest, stored[newest], err)
		}
		if again, err := codec.Encode([]byte("4711")); err != nil || !bytes.Equal(again, stored[newest]) {
			t.Errorf("key %d: got %x, then %x, %v, want the same, so that equal payloads merge", newest, stored[newest], again, err)
		}
	}
	if bytes.Equal(stored[1][1:], stored[2][1:]) {
		t.Error("two keys give the same bytes")
	}
	for newest := range both { // whichever encodes, each decodes
		codec, err := encrypted(newest, both)
		if err != nil {
			t.Fatal(err)
		}
		for number, bytes := range stored {
			if payload, err := codec.Decode(bytes); err != nil || string(payload) != "4711" {
				t.Errorf("key %d, stored with key %d: got %q, %v", newest, number, payload, err)
			}
		}
	}

	first, err := encrypted(1, map[byte]secret{1: secretOf("a")})
	if err != nil {
		t.Fatal(err)
	}
	forged := bytes.Clone(stored[2])
	forged[0] = 1
	short := stored[1][:12]
	for text, bad := range map[string][]byte{
		"payload is encrypted with key 2, which this program does not have": stored[2],
		"message authentication failed":                                     forged,
		"payload is not encrypted":                                          short,
	} {
		if payload, err := first.Decode(bad); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%x: got %q, %v, want an error with %q", bad, payload, err, text)
		}
	}
	if _, err := encrypted(3, both); err == nil || err.Error() != "key 3 is the newest, so it must be among the keys" {
		t.Errorf("got %v, want an error that names key 3", err)
	}
	if _, err := encrypted(1, map[byte]secret{1: {key: []byte("short")}}); err == nil || !strings.HasPrefix(err.Error(), "key 1: ") {
		t.Errorf("got %v, want an error that names key 1", err)
	}
}
