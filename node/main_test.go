package node

import (
	"flag"
	"fmt"
	"runtime"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

// TestMain lets more tests run at once than there are cores: they mostly wait for leases to run out
// and for clusters to agree.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		flag.Set("test.parallel", fmt.Sprint(3*runtime.GOMAXPROCS(0))) //nolint:errcheck // a number
	}
	leaktest.Main(m)
}
