package lowkiq_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
)

// TestShardOfIsWhatItWas checks that an id stays in its shard from release to release.
func TestShardOfIsWhatItWas(t *testing.T) {
	t.Parallel()
	for id, want := range map[string][3]int{ // of 1, 16 and 1,000,000 shards, more than a queue may have
		"":                                     {0, 0, 0},
		"a":                                    {0, 8, 523437},
		"order-17":                             {0, 9, 579671},
		"order-18":                             {0, 5, 329671},
		"customers-2026-11-00.csv":             {0, 5, 341985},
		"customers-2026-11-01.csv":             {0, 13, 846519},
		"заказ-1":                              {0, 5, 353306},
		"\x00\xff":                             {0, 15, 996093},
		"f47ac10b-58cc-4372-a567-0e02b2c3d479": {0, 12, 775105},
	} {
		if got := [3]int{lowkiq.ShardOf(id, 1), lowkiq.ShardOf(id, 16), lowkiq.ShardOf(id, 1_000_000)}; got != want {
			t.Errorf("%.20q: got %v, want %v", id, got, want)
		}
	}
}

// TestShardOfPanics checks that ShardOf panics for a queue without shards.
func TestShardOfPanics(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{0, -1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d shards: got no panic", shards)
				}
			}()
			lowkiq.ShardOf("id", shards)
		}()
	}
}

// fullest is how many of the ids the fullest of n shards has.
func fullest(ids []string, n int) int {
	counts := make([]int, n)
	for _, id := range ids {
		counts[lowkiq.ShardOf(id, n)]++
	}
	return slices.Max(counts)
}

// fair is how many of so many ids a shard may have: twice its share, and 2 at least.
func fair(ids, n int) int { return max(2, 2*ids/n) }

// TestSimilarNames checks that no shard gets much more than its part of names that crc32 modulo 16 puts nearly all into
// one shard.
func TestSimilarNames(t *testing.T) {
	t.Parallel()
	for _, family := range []struct {
		format string
		ids    int
	}{{"customers-2026-11-%02d.csv", 6}, {"stock-%02d.csv", 9}, {"tenant-%d", 16}, {"eu/2026-%02d/report.json", 12}} {
		var ids []string
		for i := range family.ids {
			ids = append(ids, fmt.Sprintf(family.format, i))
		}
		for _, n := range []int{4, 8, 16, 32, 64} {
			if got, most := fullest(ids, n), fair(len(ids), n); got > most {
				t.Errorf("%s: %d of %d ids are in one of %d shards, want %d at most", ids[0], got, len(ids), n, most)
			}
		}
	}
}

// TestFamiliesOfNames measures ADR 31: of a thousand families of similar names few put more than twice the fair share into a shard.
func TestFamiliesOfNames(t *testing.T) {
	t.Parallel()
	all := families(1000)
	for _, of := range []struct {
		shards []int
		over   float64 // share of cases that may be beyond twice the fair share
		worst  float64 // the most, in fair shares
	}{
		{[]int{4, 8, 16, 32, 64}, 0.065, 4},
		{[]int{5, 6, 10, 12, 15, 20, 24, 40, 48, 60}, 0.16, 5},
	} {
		cases, over, worst, which := 0, 0, 0.0, ""
		for _, n := range of.shards {
			for _, ids := range all {
				got := fullest(ids, n)
				if cases++; got > fair(len(ids), n) {
					over++
				}
				if shares := float64(got) / max(1, float64(len(ids))/float64(n)); shares > worst {
					worst, which = shares, fmt.Sprintf("%s and %d more in %d shards", ids[0], len(ids)-1, n)
				}
			}
		}
		share := float64(over) / float64(cases)
		t.Logf("%v shards: %.1f %% of %d cases are beyond twice the fair share, the most is %.1f: %s", of.shards, 100*share, cases, worst, which)
		if share > of.over || worst > of.worst {
			t.Errorf("%v shards: got %.1f %% beyond twice the fair share, the most is %.1f of it, want %.0f %% and %.1f", of.shards, 100*share, worst, 100*of.over, of.worst)
		}
	}
}

// families are names that people give: of counters with and without leading zeros, dates, hex numbers, two counters, steps.
func families(n int) (all [][]string) {
	r := rand.New(rand.NewPCG(1, 1))
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	for i := range n {
		prefix := one("customers", "orders", "stock", "user", "invoice", "import", "tenant", "eu-west", "x") + one("-", "_", ".", ":", "/", "")
		suffix := one("", "", ".csv", ".json", "-eu", "/main")
		ids, digits := 4+r.IntN(125), 3+r.IntN(4)
		first, step := 0, 1
		if r.IntN(2) == 0 {
			first = r.IntN(800)
		}
		name := func(k int) string { return fmt.Sprintf("%0*d", digits, first+k*step) }
		switch i % 6 {
		case 1:
			name = func(k int) string { return fmt.Sprint(first + k) }
		case 2:
			day, form := time.Date(2026, time.Month(1+r.IntN(12)), 1+r.IntN(28), 0, 0, 0, 0, time.UTC), one("2006-01-02", "20060102", "02.01.2006")
			name = func(k int) string { return day.AddDate(0, 0, k).Format(form) }
		case 3:
			name = func(k int) string { return fmt.Sprintf("%0*x", digits, first+k) }
		case 4:
			rows, between := 2+r.IntN(15), one("-", ":", "/")
			name = func(k int) string { return fmt.Sprintf("%02d%s%02d", k%rows, between, k/rows) }
		case 5:
			step = []int{2, 3, 5, 7, 10}[r.IntN(5)]
		}
		var names []string
		for k := range ids {
			names = append(names, prefix+name(k)+suffix)
		}
		all = append(all, names)
	}
	return all
}

// TestRepeatedNumbers checks that names with a number in two places reach at least half of the shards, however far
// apart the two are.
func TestRepeatedNumbers(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"%d/%d", "%03d-%03d", "tenant-%d/tenant-%d-report", "user:%d:orders:%d", "2026-11-%02d/2026-11-%02d.csv", "%d, twice: %d"} {
		for _, n := range []int{2, 4, 5, 8, 10, 16, 24, 32, 64} {
			reached := map[int]bool{}
			for i := range 32 * n {
				reached[lowkiq.ShardOf(fmt.Sprintf(format, i, i), n)] = true
			}
			if len(reached) < n/2 {
				t.Errorf("%s: %d names reach %d of %d shards", format, 32*n, len(reached), n)
			}
		}
	}
}

// TestRandomIDs checks that ids without a pattern fill shards evenly, by the chi-square test. The ids are UUIDs, text
// of several bytes a letter, and any bytes.
func TestRandomIDs(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(2, 2))
	letters := []rune("абвгдежзийклмнопрстуфхцчшщ日本語東京大阪€äöü")
	for kind, id := range map[string]func(sum [32]byte) string{
		"uuid": func(s [32]byte) string {
			return fmt.Sprintf("%x-%x-4%x-a%x-%x", s[:4], s[4:6], s[6:7], s[7:8], s[8:14])
		},
		"hex": func(s [32]byte) string { return hex.EncodeToString(s[:8]) },
		"numbers": func(s [32]byte) string {
			return fmt.Sprint(uint64(s[0])<<40 | uint64(s[1])<<32 | uint64(s[2])<<24 | uint64(s[3])<<16 | uint64(s[4])<<8 | uint64(s[5]))
		},
		"letters of several bytes": func(s [32]byte) string {
			var text []rune
			for _, b := range s[:16] {
				text = append(text, letters[int(b)%len(letters)])
			}
			return string(text)
		},
		"bytes": func(s [32]byte) string { return string(s[:12]) },
	} {
		var ids []string
		for range 20_000 {
			seed := fmt.Sprint(r.Uint64())
			ids = append(ids, id(sha256.Sum256([]byte(seed))))
		}
		for _, n := range []int{2, 3, 4, 5, 8, 12, 16, 31, 32, 48, 64, 100, 1000} {
			counts := make([]int, n)
			for _, id := range ids {
				counts[lowkiq.ShardOf(id, n)]++
			}
			chi, mean := 0.0, float64(len(ids))/float64(n)
			for _, c := range counts {
				chi += (float64(c) - mean) * (float64(c) - mean) / mean
			}
			// It is about normal, with n - 1 as its mean and twice that as its variance; one of 65 in a million is beyond 5 sigma or so.
			if limit := float64(n-1) + 5*math.Sqrt(2*float64(n-1)) + 10; chi > limit {
				t.Errorf("%s in %d shards: got a chi-square of %.0f, want %.0f at most", kind, n, chi, limit)
			}
		}
	}
}
