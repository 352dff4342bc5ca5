package redisdb

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// slotOf is the slot of a key in a Redis Cluster.
func slotOf(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	return int(crc16(0, key) % hashSlots)
}

// Redis's own example, and the rules of its hash tags.
func TestSlotOf(t *testing.T) {
	t.Parallel()
	if got := crc16(0, "123456789"); got != 0x31C3 {
		t.Errorf("got %#x, want 0x31C3", got)
	}
	for key, want := range map[string]string{"{a}:x": "a", "b{a}{c}": "a", "{}a": "{}a", "a{": "a{", "a": "a"} {
		if got := slotOf(key); got != int(crc16(0, want)%hashSlots) {
			t.Errorf("%s: got slot %d, want that of %s", key, got, want)
		}
	}
}

func TestPlacesReachEverySlot(t *testing.T) {
	t.Parallel()
	for slot, place := range places() {
		if len(place) != placeLength {
			t.Fatalf("slot %d: got place %q", slot, place)
		}
	}
}

// Masters with equal ranges of slots have about equally many shards of a queue.
func TestShardsAreSpread(t *testing.T) {
	t.Parallel()
	for _, cluster := range []string{"default", "prod", "a"} {
		for _, queue := range []string{"bench", "mail", "orders", "invoice_sync", "q", "images.large"} {
			slots := make([]int, 5000)
			for i := range slots {
				slots[i] = slotOf(Keys{cluster}.Shard(queue, 1, i).Jobs)
			}
			for _, shards := range []int{5, 10, 50, 100, 500, 5000} {
				for masters := 2; masters <= 12; masters++ {
					has := make([]int, masters)
					for _, slot := range slots[:shards] {
						has[slot*masters/hashSlots]++
					}
					if spread := slices.Max(has) - slices.Min(has); spread > 5 {
						t.Errorf("%s/%s, %d shards: got %v by master, want at most 5 apart", cluster, queue, shards, has)
					}
				}
			}
		}
	}
}

// Queues of one shard do not all lie on one master.
func TestFirstShardsAreSpread(t *testing.T) {
	t.Parallel()
	has := make([]int, 3)
	for i := range 300 {
		has[slotOf(Keys{"default"}.Shard(fmt.Sprintf("queue%d", i), 1, 0).Jobs)*3/hashSlots]++
	}
	if slices.Min(has) < 70 {
		t.Errorf("got %v of 300 queues by master, want about 100 each", has)
	}
}

// All releases must find the same keys.
func TestPlaceIsForGood(t *testing.T) {
	t.Parallel()
	for index, want := range map[int]string{0: "lk:{default/orders/1/0/Oko}:", 1: "lk:{default/orders/1/1/HHK}:", 4999: "lk:{default/orders/1/4999/LuL}:"} {
		if got := (Keys{"default"}).Shard("orders", 1, index).Tag; got != want {
			t.Errorf("shard %d: got %s, want %s", index, got, want)
		}
	}
}
