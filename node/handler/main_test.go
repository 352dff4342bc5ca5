package handler

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/lowkiq/lowkiq"
)

// TestMain is also the main of the processes that tests start: guards, echoing
// children and a node to be killed.
func TestMain(m *testing.M) {
	Guard()
	if role, ok := roles()[os.Getenv("HANDLER_TEST_ROLE")]; ok {
		role()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
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

// batch is a batch of one job with the id "a".
func batch() *lowkiq.Batch {
	return &lowkiq.Batch{
		Shard: lowkiq.Shard{Queue: "orders", Index: 3}, Fence: 1763600000123, Flight: 17,
		Jobs: []lowkiq.Job{{ID: "a", RetryCount: -1, Payloads: []lowkiq.Payload{{Score: 1, Data: []byte(`{"b":1}`)}}}},
	}
}

// decoded is a batch as a program in another language sees it.
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
