//go:build linux

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/testing/nodebin"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
)

// moveApp is what `lowkiq -r ./app.rb` loaded. The worker writes down what it gets.
const moveApp = `
Order = Struct.new(:number)
module OrdersWorker
  def self.perform(payloads_by_id)
    File.write('handled', payloads_by_id.map { |id, payloads| payloads.map { |p| "#{id} #{p.number}\n" }.join }.join, mode: 'a')
  end
end
`

// rubyProducer pushes what the test tells it, one job after the other.
type rubyProducer struct {
	t     *testing.T
	stdin io.WriteCloser
	lines *bufio.Reader
	cmd   *exec.Cmd
}

func produce(t *testing.T, gem, oldRedis, install string, env ...string) *rubyProducer {
	t.Helper()
	cmd := rubyScript(t, gem, oldRedis, install+`
$stdout.sync = true
puts 'ready'
while (line = gets)
  id, number = line.split
  OrdersWorker.perform_async [{ id: id, payload: Order.new(number.to_i) }]
  puts "pushed #{number}"
end
`)
	cmd.Env = append(cmd.Env, env...)
	p := &rubyProducer{t: t, cmd: cmd}
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewReader(out)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	p.says("ready")
	return p
}

func (p *rubyProducer) says(want string) {
	p.t.Helper()
	if got, err := p.lines.ReadString('\n'); err != nil || got != want+"\n" {
		p.t.Fatalf("a producer said %q, %v, want %s", got, err, want)
	}
}

func (p *rubyProducer) push(id string, number int) {
	p.t.Helper()
	fmt.Fprintln(p.stdin, id, number) //nolint:errcheck // the answer tells
	p.says(fmt.Sprint("pushed ", number))
}

// stop is called twice.
func (p *rubyProducer) stop() {
	p.stdin.Close() //nolint:errcheck // as above
	p.cmd.Wait()    //nolint:errcheck // as above
}

// The commands of a page, in order.
var shellBlocks = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// TestMoveOfREADME walks the steps of examples/ruby/README.md, command by command, with a real Redis on each side, a real
// node, and producers in Ruby that go on pushing, old ones and new ones beside each other: each payload is handled once, and
// those of an id in the order of their pushes.
func TestMoveOfREADME(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, gem := range rubies(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newRubyMove(t, gem).walk()
		})
		t.Run(name+" and back", func(t *testing.T) {
			t.Parallel()
			newRubyMove(t, gem).walkBack()
		})
	}
}

// rubyMove is a worker on its way.
type rubyMove struct {
	*rig
	dir, api, gem string
	bind          string // of the node's gossip
	old           *redistest.Server
	env           []string
	blocks        []string
	numbers       map[string][]int // what was pushed to each id
	next          int
}

func newRubyMove(t *testing.T, gem string) *rubyMove {
	t.Helper()
	addresses := redistest.Addresses(t, 3)
	m := &rubyMove{rig: newRig(t, 1), dir: t.TempDir(), bind: addresses[0], api: addresses[2], gem: gem, old: redistest.StartOld(t),
		numbers: map[string][]int{}}
	page, err := os.ReadFile("../examples/ruby/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range shellBlocks.FindAllStringSubmatch(string(page), -1) {
		m.blocks = append(m.blocks, strings.TrimSpace(found[1]))
	}
	yaml := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindStringSubmatch(string(page))
	worker, err := os.ReadFile("../examples/ruby/worker.rb")
	if err != nil || yaml == nil {
		t.Fatal(err, "no configuration in README.md")
	}
	for file, text := range map[string]string{
		"app.rb": moveApp, "worker.rb": string(worker), "handled": "",
		"node.yaml": strings.Replace(yaml[1], "bundle, exec, ruby", "ruby", 1),
	} {
		if err := os.WriteFile(filepath.Join(m.dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.env = []string{
		"PATH=" + filepath.Dir(built.Path(t, "..")) + ":" + os.Getenv("PATH"), "LOWKIQ_FROM=" + m.old.URL(), "LOWKIQ_REDIS=" + m.redis.URL(),
		"LOWKIQ_CLUSTER=" + m.cluster, "LOWKIQ_URL=http://" + m.api,
	}
	return m
}

// take takes the next block of the page, which must have commands of this kind.
func (m *rubyMove) take(kind string) string {
	m.t.Helper()
	if len(m.blocks) == 0 || !strings.Contains(m.blocks[0], kind) {
		m.t.Fatalf("README.md goes on with %q, and not with %s", m.blocks, kind)
	}
	block := m.blocks[0]
	m.blocks = m.blocks[1:]
	// A test need not wait as long as a person.
	block = strings.ReplaceAll(block, "--follow", "--follow --quiet 3s --watch 100ms")
	block = strings.ReplaceAll(block, "--back", "--back --watch 100ms")
	block = strings.ReplaceAll(block, "--dry-run", "--dry-run --watch 100ms -o json")
	return "cd " + m.dir + " && set -e\n" + block
}

// do runs commands.
func (m *rubyMove) do(commands string) (out string) {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), "sh", "-c", commands)
	cmd.Env = nodebin.Env(m.env...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s\n%v: %s", commands, err, text)
	}
	return string(text)
}

// pushBy pushes the next numbers by producers in turn.
func (m *rubyMove) pushBy(n int, by ...*rubyProducer) {
	m.t.Helper()
	for range n {
		m.next++
		id := fmt.Sprint("order-", m.next%3)
		by[m.next%len(by)].push(id, m.next)
		m.numbers[id] = append(m.numbers[id], m.next)
	}
}

// left is how many jobs the old queue has, by what a dry run has printed.
func (m *rubyMove) left(out string) int {
	m.t.Helper()
	line, _, _ := strings.Cut(out[max(0, strings.Index(out, "{")):], "\n")
	var sum struct{ Found struct{ Jobs int } }
	if err := json.Unmarshal([]byte(line), &sum); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
	return sum.Found.Jobs
}

// killed leaves an id as an old worker does that was killed while it had it.
func (m *rubyMove) killed(id string, shard int) {
	m.t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: m.old.Addr()})
	defer rdb.Close()
	const prefix = "lowkiq:A:v1:OrdersWorker:"
	due, err := rdb.ZScore(m.t.Context(), prefix+"all_ids_scored_by_perfrom_in", id).Result()
	if err != nil {
		m.t.Fatal(err)
	}
	pipe := rdb.TxPipeline()
	pipe.ZRem(m.t.Context(), prefix+"all_ids_lex", id)
	pipe.ZRem(m.t.Context(), prefix+"all_ids_scored_by_perfrom_in", id)
	pipe.ZRem(m.t.Context(), prefix+"all_ids_scored_by_retry_count", id)
	pipe.ZRem(m.t.Context(), fmt.Sprint(prefix, "ids_scored_by_perform_in:", shard), id)
	pipe.Rename(m.t.Context(), prefix+"payloads:"+id, prefix+"processing:payloads:"+id)
	pipe.HSet(m.t.Context(), fmt.Sprint(prefix, "processing:ids_with_perform_in:", shard), id, due)
	pipe.HSet(m.t.Context(), fmt.Sprint(prefix, "processing:ids_with_retry_count:", shard), id, -1)
	pipe.HSet(m.t.Context(), prefix+"processing_length_by_shard", shard, 1)
	if _, err := pipe.Exec(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

// before is what comes up to the resume.
func (m *rubyMove) before() (node *process, newer *rubyProducer) {
	m.t.Helper()
	m.take("export") // the test has its own
	older := produce(m.t, m.gem, m.old.Addr(), "")
	m.pushBy(30, older)
	m.killed("order-1", 4) // crc32("order-1") % 5
	m.pushBy(3, older)

	node = m.run("lowkiq-node", m.env, "sh", "-c", strings.Replace(m.take("lowkiq-node run"), "lowkiq-node run", "exec lowkiq-node run",
		1)+" --name n1 --http "+m.api+" --bind "+m.bind)
	m.leased(node, 1)
	m.await("the queue is registered", patience, func() bool {
		_, err := m.client.Queue(m.t.Context(), "orders")
		return err == nil
	})
	if n := m.left(m.do(m.take("pause"))); n != 3 {
		m.t.Errorf("the look found %d jobs, want 3", n)
	}
	newer = produce(m.t, m.gem, m.old.Addr(), "LowkiqShim.install(queues: { 'OrdersWorker' => 'orders' }, payload: :marshal, patience: 60)\n", m.env...)
	m.pushBy(30, older, newer)

	moving := make(chan string)
	commands := m.take("--follow")
	go func() {
		cmd := exec.Command("sh", "-c", commands)
		cmd.Env = nodebin.Env(m.env...)
		text, err := cmd.CombinedOutput()
		moving <- fmt.Sprint(err, " ", string(text))
	}()
	m.pushBy(30, older, newer)
	older.stop()
	m.pushBy(10, newer)
	if said := <-moving; !strings.HasPrefix(said, "<nil>") || !strings.Contains(said, "moved") {
		m.t.Fatal(said)
	}
	if n := m.left(m.do(m.take("queues list"))); n != 0 {
		m.t.Errorf("after the move the old queue has %d jobs", n)
	}
	if n := len(m.handled()); n > 0 {
		m.t.Errorf("%d payloads were handled before the resume", n)
	}
	return node, newer
}

func (m *rubyMove) walk() {
	m.t.Helper()
	node, newer := m.before()
	m.do(m.take("resume"))
	m.pushBy(20, newer)
	newer.stop()
	q, err := m.client.Queue(m.t.Context(), "orders")
	if err != nil {
		m.t.Fatal(err)
	}
	m.await("all is handled", patience, func() bool {
		stats, err := q.Stats(m.t.Context())
		return err == nil && stats.Jobs.Total() == 0
	})
	node.terminate(patience)
	if m.take("--back"); len(m.blocks) > 0 {
		m.t.Errorf("README.md has steps that nobody goes: %q", m.blocks)
	}
	m.inOrder()
}

// walkBack goes the way back instead of the last step. What the old queue has then is judged.
func (m *rubyMove) walkBack() {
	m.t.Helper()
	node, newer := m.before()
	m.take("resume")
	newer.stop()
	older := produce(m.t, m.gem, m.old.Addr(), "")
	m.pushBy(9, older)
	m.do(m.take("--back"))
	m.pushBy(9, older)
	older.stop()
	q, err := m.client.Queue(m.t.Context(), "orders")
	if err != nil {
		m.t.Fatal(err)
	}
	if stats, err := q.Stats(m.t.Context()); err != nil || stats.Jobs.Total() != 0 {
		m.t.Errorf("the new queue has %+v, %v; want nothing", stats.Jobs, err)
	}
	node.terminate(patience)
	dumped := map[string]int{}
	out, err := exec.CommandContext(m.t.Context(), "ruby", "-e", fmt.Sprint("Order = Struct.new(:number); (1..", m.next,
		").each { |n| puts Marshal.dump(Order.new(n)).unpack('H*')[0] }")).Output()
	if err != nil {
		m.t.Fatal(err)
	}
	for n, text := range strings.Fields(string(out)) {
		dumped[text] = n + 1
	}
	rdb := redis.NewClient(&redis.Options{Addr: m.old.Addr()})
	defer rdb.Close()
	for id, want := range m.numbers {
		payloads, err := rdb.ZRange(m.t.Context(), "lowkiq:A:v1:OrdersWorker:payloads:"+id, 0, -1).Result()
		if err != nil {
			m.t.Fatal(err)
		}
		var got []int
		for _, p := range payloads {
			got = append(got, dumped[fmt.Sprintf("%x", p)])
		}
		if !slices.Equal(got, want) {
			m.t.Errorf("%s: the old queue has\n%v, want\n%v", id, got, want)
		}
	}
}

// handled is what the worker has written down, by id.
func (m *rubyMove) handled() map[string][]int {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, "handled"))
	if err != nil {
		m.t.Fatal(err)
	}
	handled := map[string][]int{}
	for line := range strings.Lines(string(text)) {
		id, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			m.t.Fatal(err)
		}
		handled[id] = append(handled[id], n)
	}
	return handled
}

// inOrder judges what was handled.
func (m *rubyMove) inOrder() {
	m.t.Helper()
	handled := m.handled()
	for id, want := range m.numbers {
		if got := handled[id]; !slices.Equal(got, want) {
			m.t.Errorf("%s: handled\n%v, want\n%v", id, got, want)
		}
	}
}
