package otel_test

import (
	"log"
	"os"
	"testing"

	"github.com/lowkiq/lowkiq/internal/store/embedded"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) {
	redis, err := embedded.Start() // for the examples
	if err != nil {
		log.Fatal(err)
	}
	os.Setenv("REDIS_URL", redis.URL()) //nolint:errcheck // a constant name
	code := m.Run()
	redis.Close()
	if err := leaktest.Check(); code == 0 && err != nil {
		log.Print(err)
		code = 1
	}
	os.Exit(code)
}
