package lowkiq_test

import (
	"log"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/lowkiq/lowkiq/internal/embedded"
)

func TestMain(m *testing.M) {
	redis, err := embedded.Start() // for the example
	if err != nil {
		log.Fatal(err)
	}
	os.Setenv("REDIS_URL", redis.URL()) //nolint:errcheck // a constant name
	code := m.Run()
	redis.Close()
	if err := goleak.Find(); code == 0 && err != nil {
		log.Print(err)
		code = 1
	}
	os.Exit(code)
}
