package bench

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/node/handler"
)

// TestMain is also the main of the processes that BenchmarkHandlers starts: guards and an endpoint.
func TestMain(m *testing.M) {
	handler.Guard()
	if os.Getenv(endpointRole) != "" {
		endpoint()
	}
	leaktest.Main(m)
}

// endpointRole is the variable that makes this binary an endpoint.
const endpointRole = "LOWKIQ_BENCH_ENDPOINT"

// endpoint answers every batch, and ends with its stdin. It says on stdout where it listens.
func endpoint() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) //nolint:errcheck // ends with the process
	fmt.Printf("http://%s/\n", l.Addr())
	os.Stdin.Read(make([]byte, 1)) //nolint:errcheck // its end is what counts
	os.Exit(0)
}
