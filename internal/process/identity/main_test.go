package identity

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if judged := os.Getenv(judgedVariable); judged != "" {
		judge(judged)
	}
	os.Exit(m.Run())
}
