package dashboard

import "testing"

func TestNewWantsItsParts(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{}); err == nil {
		t.Error("got no error, want one that names what is missing")
	}
}
