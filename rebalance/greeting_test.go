package rebalance

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// Whoever connects may say so much and no more.
func TestGreetingLimit(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]string{greetingLimit: "", greetingLimit + 1: "the limit is 1024", 1<<16 - 1: "the limit is 1024"} {
		text := `{"cluster":"` + strings.Repeat("x", size-len(`{"cluster":""}`)) + `"}`
		_, err := readGreeting(bytes.NewReader(append(binary.BigEndian.AppendUint16(nil, uint16(size)), text...)))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes: got %v, want %q", size, err, want)
		}
	}
}
