package redistest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

// orphanEnv makes the test binary the process that TestServerDiesWithItsTest kills.
const orphanEnv = "REDISTEST_ORPHAN"

func TestMain(m *testing.M) {
	if os.Getenv(orphanEnv) != "" {
		os.Exit(m.Run()) // it is killed with a server running
	}
	leaktest.Main(m)
}

// TestOrphan runs only as a child of TestServerDiesWithItsTest.
func TestOrphan(t *testing.T) {
	if os.Getenv(orphanEnv) == "" {
		return
	}
	s := Start(t)
	fmt.Printf("pid %d\n", s.PID())
	<-time.After(patience)
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if err := awaitCondition(nil, condition); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
