//go:build linux

package e2e

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// rubyApp is a worker of Ruby's Lowkiq, and what its payloads are made of.
const rubyApp = `
SEEN = File.join(__dir__, 'seen')
Order = Struct.new(:number, :items)
module OrdersWorker
  def self.perform(payloads_by_id)
    File.write(SEEN, payloads_by_id.map { |id, payloads| "#{id} #{payloads.map(&:inspect).join(' ')}\n" }.join, mode: 'a')
    raise 'no hope' if payloads_by_id.key?('hopeless')
    raise 'once' if payloads_by_id.key?('fails') && !File.exist?(SEEN + '.failed') && File.write(SEEN + '.failed', '')
  end
end
`

// rubyHooks are what the gem and the worker have around perform: a server middleware, and retries_exhausted. The gem is
// stood in for.
const rubyHooks = `
def note(text) File.write(SEEN + '.hooks', text + "\n", mode: 'a') end
module Lowkiq
  def self.server_wrapper
    lambda do |worker, batch, &block|
      note "before #{batch.keys.join}"
      block.call
      note "after #{batch.keys.join}"
    end
  end
end
module OrdersWorker
  def self.retries_exhausted(batch)
    batch.each { |job| note "exhausted #{job[:id]} #{job[:payloads]} #{job[:error]}" }
  end
end
`

// TestRubyWorker runs perform of an old worker through examples/ruby/worker.rb below a real node. Payloads that Ruby
// dumped are objects again and come by score, failed payloads come again, middlewares wrap the call, and
// retries_exhausted gets the payloads that went to the morgue.
func TestRubyWorker(t *testing.T) {
	tier.All(t)
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
	if err := os.WriteFile(app, []byte(rubyApp+rubyHooks), 0o600); err != nil {
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
		lowkiq.Push{ID: "hopeless", Score: new(1.5), Payload: dump(`:first`)},
		lowkiq.Push{ID: "hopeless", Score: new(2.5), Payload: dump(`:second`)},
	); err != nil {
		t.Fatal(err)
	}
	w := r.stock(r.config(fmt.Sprintf("{exec: [%q, %q, %q, OrdersWorker], processes: 1, events: [buried]}\n    max_retry_count: 1\n    "+
		"retry_in: {base: 10ms, power: 0, jitter: 0s}", ruby, worker, app)))
	r.drained()
	w.terminate(patience)
	text, err := os.ReadFile(seen)
	lines := strings.Split(strings.ReplaceAll(strings.TrimSpace(string(text)), `"plain" => `, `"plain"=>`), "\n")
	got := map[string]int{}
	for _, line := range lines {
		got[strings.ReplaceAll(line, "first: ", ":first=>")]++
	}
	if want := `order-7 {:first=>1970-01-01 00:00:00 UTC} #<struct Order number=7, items=[:late, (1/1), "Zoë"]> {"plain"=>[1, nil]}`; err != nil || len(got) != 4 || got[want] != 1 || got[`fails "\xFF"`] != 2 {
		t.Errorf("got %q, %v, want %s once, and fails twice", lines, err, want)
	}
	text, err = os.ReadFile(seen + ".hooks")
	hooks := map[string]int{}
	for line := range strings.Lines(string(text)) {
		hooks[strings.TrimSpace(line)]++
	}
	if want := map[string]int{
		"before order-7": 1, "after order-7": 1, "before fails": 2, "after fails": 1, "before hopeless": 4,
		"exhausted hopeless [[:first, 1.5]] no hope": 1, "exhausted hopeless [[:second, 2.5]] no hope": 1,
	}; err != nil || !maps.Equal(hooks, want) {
		t.Errorf("got %v, %v, want %v", hooks, err, want)
	}
}

// TestHandlersAreToldOfTheEnd checks that child processes and HTTP endpoints of a real node can ask which jobs are out
// of retries. They also learn which payloads went to the morgue, with the error.
func TestHandlersAreToldOfTheEnd(t *testing.T) {
	t.Parallel()
	const failed = `{"ok":false,"error":"no stock"}`
	for name, handler := range map[string]func(r *rig, file string) string{
		"exec": func(_ *rig, file string) string {
			script := fmt.Sprintf(`while read -r line; do echo "$line" >>%s; case $line in *event*) echo '{"ok":true}';; *) echo '%s';; esac; done`, file, failed)
			if err := os.WriteFile(file+".sh", []byte(script), 0o600); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("{exec: [sh, %q], processes: 1, ", file+".sh")
		},
		"http": func(r *rig, file string) string {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				text, err := io.ReadAll(req.Body)
				f, opened := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
				if err != nil || opened != nil {
					t.Error(err, opened)
					return
				}
				defer f.Close()
				fmt.Fprintf(f, "%s\n", text) //nolint:errcheck // the test would see
				if req.Header.Get("Lowkiq-Event") == "" {
					io.WriteString(w, failed) //nolint:errcheck // as above
				}
			}))
			r.t.Cleanup(server.Close)
			return fmt.Sprintf("{http: %q, ", server.URL)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			file := filepath.Join(t.TempDir(), "told")
			r.push(lowkiq.Push{ID: "a", Score: new(1.0), Payload: []byte("1")}, lowkiq.Push{ID: "a", Score: new(2.0), Payload: []byte("2")})
			w := r.stock(r.config(handler(r, file) + "events: [exhausted, buried]}\n    max_retry_count: 0\n    exhausted: bury"))
			want := []string{
				`{"event":{"kind":"exhausted","queue":"history","shard":0,"jobs":[{"id":"a","retry_count":-1,"payloads":[{"score":1,"payload":1},{"score":2,"payload":2}],"error":"no stock"}]}}`,
				`{"event":{"kind":"buried","queue":"history","shard":0,"jobs":[{"id":"a","retry_count":-1,"payloads":[{"score":1,"payload":1},{"score":2,"payload":2}],"error":"no stock"}]}}`,
			}
			var got []string
			r.await("it is told of both", patience, func() bool {
				text, err := os.ReadFile(file)
				got = strings.Split(strings.TrimSpace(string(text)), "\n")
				return err == nil && len(got) >= 3
			})
			w.terminate(patience)
			if len(got) != 3 || !slices.Equal(got[1:], want) {
				t.Errorf("got\n%s\nwant a batch, and\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}
