package shell

import (
	"os/exec"
	"testing"
)

// TestWord checks that a shell reads each word back as the text, and that plain texts have no quotes.
func TestWord(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"order-17": "order-17", "a/b.c:d@e+f": "a/b.c:d@e+f", "": "''", "-rf": "'-rf'", "a b": "'a b'", "it's": `'it'\''s'`, "$(id)": "'$(id)'", "ä": "'ä'",
	} {
		word := Word(text)
		if word != want {
			t.Errorf("%q: got %s, want %s", text, word, want)
		}
		if got, err := exec.Command("sh", "-c", "printf %s "+word).Output(); text != "-rf" && (err != nil || string(got) != text) {
			t.Errorf("%q: a shell reads %q, %v", text, got, err)
		}
	}
}
