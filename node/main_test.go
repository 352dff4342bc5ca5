package node

import (
	"os"
	"testing"

	"github.com/lowkiq/lowkiq/internal/leaktest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		child()
	}
	leaktest.Main(m)
}
