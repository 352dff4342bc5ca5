package node

import (
	"os"
	"testing"

	"github.com/lowkiq/lowkiq/internal/leaktest"
	"github.com/lowkiq/lowkiq/node/handler"
)

func TestMain(m *testing.M) {
	handler.Guard()
	if os.Getenv(childVariable) != "" {
		child()
	}
	leaktest.Main(m)
}
