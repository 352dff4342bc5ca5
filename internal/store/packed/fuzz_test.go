package packed_test

import (
	"math"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/internal/store/packed"
)

// FuzzDecode checks that Decode reads a stored job as its head says, or refuses it. The result is part of the stored
// bytes, and has a JSON form.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"a\x00\x06\x00\x00\x00\x00\x00\x00\x01data", "e\x00\x06\x00\x00\x00\x00\x00\x3f\xf0\x00\x00\x00\x00\x00\x00\x00L\x00\x02{}\x03adrdata",
		"e\x00\x06\x00\x00\x00\x00\x00\x7f\xf8\x00\x00\x00\x00\x00\x00nan", "j-1 1700000000000000 2 4 0 3\n1.5 2:ab0.5 2:cd", "j3 1 1 1 4 2 1 0\nboom1 1:x",
		"j0 1 -5 0 0 1\n", "j0 1 9223372036854775807 0 0 1\n", "j0 1 1 1 0 2\nnan 1:x", "s-1 1 3 3 0 3 0\n", "p0 1 1 1 0 2\n\xbf\xf0\x00\x00\x00\x00\x00\x00500000000001\x00\x00\x00\x01x",
		"X later", "", "x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, record string) {
		var all int
		job, slab, err := packed.Decode("id", record, nil)
		if err != nil {
			return
		}
		for i, p := range job.Payloads {
			all += len(p.Data)
			if math.IsNaN(p.Score) || math.IsInf(p.Score, 0) {
				t.Errorf("%q: got score %v", record, p.Score)
			}
			if i > 0 && p.Score < job.Payloads[i-1].Score {
				t.Errorf("%q: got payloads that are not in order", record)
			}
		}
		if all+len(job.Error) > len(record) || cap(slab) > 2*len(record)+8 {
			t.Errorf("%q: got %d bytes of payloads, %d of error, and room for %d payloads", record, all, len(job.Error), cap(slab))
		}
		if record[0] == 'j' || record[0] == 'p' || record[0] == 's' {
			line, _, _ := strings.Cut(record[1:], "\n")
			head, err := packed.HeadWords(record[0], line)
			if err != nil || head[2] < 0 || record[0] != 's' && int64(len(job.Payloads)) != head[2] {
				t.Errorf("%q: got %d payloads, its head %v, %v", record, len(job.Payloads), head, err)
			}
		}
	})
}

// FuzzParseSpill checks that the parts of a name in the spill make the same name.
func FuzzParseSpill(f *testing.F) {
	for _, seed := range []string{"w1:a:\xbf\xf0\x00\x00\x00\x00\x00\x00500000000001data", "m3:a:b:data", "w1:a", "w0::x", "w01:a:x", "w+1:a:x", "w99999999999999999999:a:x"} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, name string, placed bool) {
		e, ok := packed.ParseSpill(name, placed)
		if !ok {
			return
		}
		if whole := packed.SpillPrefix(e.Space, e.ID) + e.Key + e.Payload; whole != name || placed != (len(e.Key) == packed.KeyBytes) {
			t.Errorf("%q: got %+v, which is %q", name, e, whole)
		}
	})
}
