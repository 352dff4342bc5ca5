package rebalance

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// What Raft would panic at is refused, and the connection is of use afterwards.
func TestGuardRefuses(t *testing.T) {
	t.Parallel()
	good := raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "b#7.1", Address: "b#7.1@h"}}})
	entry := func(kind raft.LogType, data []byte) []*raft.Log {
		return []*raft.Log{{Index: 5, Term: 1, Type: kind, Data: data}}
	}
	to := listen(t, "c")
	target := open(t, to, "b#7.1")
	go func() {
		for {
			select {
			case rpc := <-target.Consumer():
				if _, ok := rpc.Command.(*raft.InstallSnapshotRequest); ok {
					_, _ = io.Copy(io.Discard, rpc.Reader)
					rpc.Respond(&raft.InstallSnapshotResponse{Success: true}, nil)
					continue
				}
				rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
			case <-t.Context().Done():
				return
			}
		}
	}()
	from := open(t, listen(t, "c"), "a#7.1")
	address := Address("b#7.1", to.Address())
	for _, tt := range []struct {
		name    string
		entries []*raft.Log
		want    string // "" = it is passed on
	}{
		{"a command", entry(raft.LogCommand, []byte("x")), ""},
		{"a configuration", entry(raft.LogConfiguration, good), ""},
		{"no configuration", entry(raft.LogConfiguration, []byte("\xff\xff")), "raft configuration of 2 bytes"},
		{"a cut configuration", entry(raft.LogConfiguration, good[:len(good)-3]), "raft configuration of"},
		{"an old form of it", entry(raft.LogAddPeerDeprecated, good), "unknown type"},
		{"an unknown type", entry(99, nil), "unknown type 99"},
		{"a gap", []*raft.Log{{Index: 7, Term: 1}}, "raft entry 7 follows entry 4"},
		{"a command again", entry(raft.LogCommand, []byte("x")), ""},
	} {
		var answer raft.AppendEntriesResponse
		err := from.AppendEntries("b#7.1", address, &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 4, PrevLogTerm: 1, Entries: tt.entries}, &answer)
		if got := errText(err); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	for _, tt := range []struct {
		name   string
		config []byte
		size   int64
		want   string
	}{
		{"a snapshot", good, 4, ""},
		{"one of no configuration", []byte{0xff}, 4, "raft configuration of 1 bytes"},
		{"one that is too large", good, 700 << 20, "raft snapshot of 734003200 bytes"},
	} {
		request := &raft.InstallSnapshotRequest{SnapshotVersion: raft.SnapshotVersionMax, Term: 1, Configuration: tt.config, Size: tt.size}
		var answer raft.InstallSnapshotResponse
		err := from.InstallSnapshot("b#7.1", address, request, &answer, bytes.NewReader(make([]byte, 4)))
		if got := errText(err); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// A request is not decoded beyond the limit, however long it says that it is.
func TestGuardBoundsRequests(t *testing.T) {
	t.Parallel()
	to := listen(t, "c")
	target := open(t, to, "b#7.1")
	from := open(t, listen(t, "c"), "a#7.1")
	var answer raft.AppendEntriesResponse
	huge := &raft.AppendEntriesRequest{Entries: []*raft.Log{{Index: 1, Data: make([]byte, requestLimit+1)}}}
	if err := from.AppendEntries("b#7.1", Address("b#7.1", to.Address()), huge, &answer); err == nil {
		t.Error("a request beyond the limit was answered")
	}
	select {
	case rpc := <-target.Consumer():
		t.Errorf("got %T, want nothing to reach Raft", rpc.Command)
	default:
	}
}
