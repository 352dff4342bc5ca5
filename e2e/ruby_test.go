//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
)

// rubyApp is a worker of Ruby's Lowkiq, and what its payloads are made of.
const rubyApp = `
SEEN = File.join(__dir__, 'seen')
Order = Struct.new(:number, :items)
module OrdersWorker
  def self.perform(payloads_by_id)
    File.write(SEEN, payloads_by_id.map { |id, payloads| "#{id} #{payloads.map(&:inspect).join(' ')}\n" }.join, mode: 'a')
    raise 'once' if payloads_by_id.key?('fails') && !File.exist?(SEEN + '.failed') && File.write(SEEN + '.failed', '')
  end
end
`

// TestRubyWorker: examples/ruby/worker.rb runs perform of an old worker below a real node: payloads
// that Ruby dumped are objects again, by score, and what fails comes again.
func TestRubyWorker(t *testing.T) {
	t.Parallel()
	ruby, err := exec.LookPath("ruby")
	if err != nil {
		t.Skip("SKIPPED: ruby is not on PATH, so examples/ruby/worker.rb was NOT run below a node; install ruby to run it")
	}
	worker, err := filepath.Abs("../examples/ruby/worker.rb")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	app, seen := filepath.Join(dir, "app.rb"), filepath.Join(dir, "seen")
	if err := os.WriteFile(app, []byte(rubyApp), 0o600); err != nil {
		t.Fatal(err)
	}
	dump := func(source string) []byte {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), ruby, "-r", app, "-e", "$stdout.binmode.write Marshal.dump("+source+")").Output()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	r := newRig(t, 1)
	if _, err := r.queue.Push(t.Context(),
		lowkiq.Push{ID: "order-7", Score: new(2.0), Payload: dump(`Order.new(7, [:late, 1r, "Zo\u00EB"])`)},
		lowkiq.Push{ID: "order-7", Score: new(1.0), Payload: dump(`{first: Time.at(0).utc}`)},
		lowkiq.Push{ID: "order-7", Score: new(3.0), Payload: []byte(`{"plain":[1,null]}`)},
		lowkiq.Push{ID: "fails", Payload: dump(`"\xff".b`)},
	); err != nil {
		t.Fatal(err)
	}
	w := r.stock(r.config(fmt.Sprintf("{exec: [%q, -r, %q, %q, OrdersWorker], processes: 1}\n    retry_in: {base: 10ms, power: 0, jitter: 0s}", ruby, app, worker)))
	r.drained()
	w.terminate(patience)
	text, err := os.ReadFile(seen)
	lines := strings.Split(strings.ReplaceAll(strings.TrimSpace(string(text)), `"plain" => `, `"plain"=>`), "\n")
	got := map[string]int{}
	for _, line := range lines {
		got[strings.ReplaceAll(line, "first: ", ":first=>")]++
	}
	if want := `order-7 {:first=>1970-01-01 00:00:00 UTC} #<struct Order number=7, items=[:late, (1/1), "Zoë"]> {"plain"=>[1, nil]}`; err != nil || len(got) != 2 || got[want] != 1 || got[`fails "\xFF"`] != 2 {
		t.Errorf("got %q, %v, want %s once, and fails twice", lines, err, want)
	}
}
