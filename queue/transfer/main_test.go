package transfer_test

import (
	"testing"

	"github.com/lowkiq/lowkiq/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }
