package handler

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
)

// TestMain is also the main function of the processes that tests start: guards, children that echo, and
// a node to be killed.
func TestMain(m *testing.M) {
	Guard()
	if role, ok := roles()[os.Getenv("HANDLER_TEST_ROLE")]; ok {
		role()
		os.Exit(0)
	}
	leaktest.Main(m)
}

// echo answers every batch.
func echo() {
	in := bufio.NewReaderSize(os.Stdin, 64<<10)
	for {
		if _, err := in.ReadSlice('\n'); err != nil && err != bufio.ErrBufferFull {
			return
		} else if err == nil {
			os.Stdout.WriteString("{\"ok\":true}\n")
		}
	}
}

// batch returns a batch of one job with the id "a".
func batch() *lowkiq.Batch {
	return &lowkiq.Batch{
		Shard: lowkiq.Shard{Queue: "orders", Index: 3}, Fence: 1763600000123, Flight: 17,
		Jobs: []lowkiq.Job{{ID: "a", RetryCount: -1, Payloads: []lowkiq.Payload{{Score: 1, Data: []byte(`{"b":1}`)}}}},
	}
}

// decoded is a batch as a program in another language reads it.
type decoded struct {
	Queue  string
	Shard  int
	Fence  int64
	Flight int64
	Jobs   []struct {
		ID       string
		Payloads []struct {
			Score   float64
			Payload json.RawMessage
		}
	}
}

func decode(t testing.TB, text []byte) decoded {
	t.Helper()
	var d decoded
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(&d); err != nil {
		t.Fatalf("batch %q: %v", text, err)
	}
	return d
}
