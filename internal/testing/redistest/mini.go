package redistest

import (
	"testing"

	"github.com/lowkiq/lowkiq/internal/store/embedded"
)

// Mini is the embedded Redis of a test.
type Mini struct {
	*embedded.Server
}

// StartMini serves an embedded Redis until the test ends.
func StartMini(t testing.TB) *Mini {
	t.Helper()
	server, err := embedded.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return &Mini{Server: server}
}
