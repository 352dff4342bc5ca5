package queue

import (
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
