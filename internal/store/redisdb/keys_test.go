package redisdb

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// What a check leaves for an instant is nothing that an audit complains of.
func TestShared(t *testing.T) {
	t.Parallel()
	k := Keys{"a"}
	for _, key := range []string{
		k.Queues(), k.Instances(), k.Record(), k.Leader(), k.Lease("n/1"), k.Name("n"), k.Timings("n/1"),
		k.probeKey(0), k.probeKey(1), k.probeKey(2),
	} {
		if !k.Shared(key) {
			t.Errorf("%s: got false, want it to be a key of the cluster", key)
		}
	}
	for _, key := range []string{
		k.clusterKey("nonsense"), k.clusterKey("lease"), Keys{"b"}.Queues(), k.Shard("q", 1, 0).Jobs, "lk:{a/q/1/0/TmI}:probe",
		k.To("n/1"), k.Answer("x"), // channels
	} {
		if k.Shared(key) {
			t.Errorf("%s: got true, want it to be no key of the cluster", key)
		}
	}
}

func TestParseShard(t *testing.T) {
	t.Parallel()
	queue, layout, index, name, ok := ParseShard(Keys{"a"}.Shard("q.x", 2, 31).Spillx)
	if queue != "q.x" || layout != 2 || index != 31 || name != "spillx" || !ok {
		t.Errorf("got %q %d %d %q %v", queue, layout, index, name, ok)
	}
	if _, _, _, _, ok := ParseShard(Keys{"a"}.Queues()); ok {
		t.Error("the registry is taken for a shard's key")
	}
}

// The head of a script names keys of a shard, or of the cluster.
func TestScriptsNameKeys(t *testing.T) {
	t.Parallel()
	k := Keys{"c"}.Shard("q", 1, 0)
	others := []string{"lease", "instances", "record", "leader", "queues", "hash", "set", "recurring", "ticks", "ticked", "rules", "changes", "permits", "permitsx", "rate", "groups", "groupsx", "day"}
	scripts := NewScripts()
	for _, f := range scriptFields {
		s := *scripts.scriptField(f)
		if !s.ofShard && slices.ContainsFunc(s.keys, func(key string) bool { return !slices.Contains(others, key) }) {
			t.Errorf("%s has keys %v, want those of a shard or of %v", s.Name, s.keys, others)
		}
	}
	if pop, ack := k.For(scripts.Pop), k.For(scripts.Ack); !slices.Equal(ack, pop[:len(ack)]) {
		t.Errorf("ack has keys %v, want the first of pop's, %v", ack, pop)
	}
}

// The head of freeze.lua has all keys of a shard, first the keys that move, then their new names, then the other keys. List
// gives each key its treatment by a freeze, so nobody can forget a new key.
func TestFreezeHasAllKeys(t *testing.T) {
	t.Parallel()
	var moves, old, others []string
	for _, key := range new(ShardKeys).List() {
		switch key.Freeze {
		case Moves:
			moves, old = append(moves, key.Name), append(old, "old:"+key.Name)
		case Empty, Stays:
			others = append(others, key.Name)
		case NotKey:
		default:
			t.Errorf("key %s: freeze is %q, want what lua/freeze.lua does to it", key.Name, key.Freeze)
		}
	}
	if got, want := NewScripts().Freeze.keys, slices.Concat(moves, old, others); !slices.Equal(got, want) {
		t.Errorf("freeze.lua has keys\n%v, want\n%v", got, want)
	}
	if !strings.Contains(NewScripts().Freeze.text, fmt.Sprintf("local moved = %d ", len(moves))) {
		t.Errorf("freeze.lua: want it to move %d keys", len(moves))
	}
	fields := reflect.VisibleFields(reflect.TypeFor[ShardKeys]())
	if len(fields) != 1+len(new(ShardKeys).List()) {
		t.Errorf("ShardKeys has %d fields, and its list %d keys; want all but Tag", len(fields), len(new(ShardKeys).List()))
	}
}
