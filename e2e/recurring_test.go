//go:build linux

package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/recurring"
)

// ticksQueue is one that no node handles: what was pushed to it stays.
const ticksQueue = "ticks"

// everySecond is what recurs in TestRecurring: at the whole second, and up to 0.9 s later.
func everySecond() map[string]recurring.Spec {
	payload := json.RawMessage(`{"at":"{tick}"}`)
	return map[string]recurring.Spec{
		"tick":  {Every: recurring.Duration(time.Second), Queue: ticksQueue, Payload: payload},
		"later": {Every: recurring.Duration(time.Second), Jitter: recurring.Duration(900 * time.Millisecond), Queue: ticksQueue, Payload: payload},
	}
}

// TestRecurring pushes recurring jobs every second. Meanwhile the leader is killed, frozen, and cut off from the others
// and from Redis, and Redis is killed and started again with its files. Each tick is pushed once. The test runs for one
// round of faults, or as long as LOWKIQ_RECURRING says. It counts pushes in Redis's append-only file, because a second
// push of a waiting tick would merge with the first and show nowhere else.
func TestRecurring(t *testing.T) {
	t.Parallel()
	length := fromEnv(t, "LOWKIQ_RECURRING", tier.Of(0, time.Second, 30*time.Second), time.ParseDuration)
	r := newRig(t, 3, append(slices.Clone(redistest.Durable), "--auto-aof-rewrite-percentage", "0")...)
	s := &ticking{d: newRelays(t), links: map[string]*redistest.Proxy{}}
	s.fleet = &fleet{rig: r, nodes: map[string]*process{}, settings: settings{TTL: ttl, HTTP: "127.0.0.1:0", Queues: []string{queueName},
		Recurring: everySecond()}}
	s.http = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	_, err := r.client.Register(t.Context(), lowkiq.Queue{Name: ticksQueue, Shards: 3})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		s.up(i + 1)
	}
	s.goesOn("at first")
	began, struck := time.Now(), map[string]int{}
	kinds := []struct {
		name  string
		fault func(leader string)
	}{{"killed", s.kills}, {"frozen", s.freezes}, {"cut off from the others", s.cutsOffNode},
		{"cut off from Redis", s.cutsOffRedis}, {"Redis killed", s.restartsRedis}}
	for i := 0; i < len(kinds) || time.Since(began) < length; i++ {
		leader, _, _ := s.parts()
		kinds[i%len(kinds)].fault(leader)
		struck[kinds[i%len(kinds)].name]++
	}
	s.goesOn("in the end")
	for _, name := range s.list() {
		s.lease(name) // from then on it knows what SIGTERM means
		s.leave(name)
	}
	for name := range everySecond() {
		ticks := s.counted(name)
		t.Logf("%s: %d ticks in %s, each pushed once; the leader was %v", name, ticks, time.Since(began).Round(time.Second), struck)
		if least := int(length.Seconds()); ticks < least {
			t.Errorf("%s: got %d ticks, want %d at least", name, ticks, least)
		}
	}
}

// ticking is a fleet that handles nothing and pushes what recurs.
type ticking struct {
	*fleet
	d     *relays
	links map[string]*redistest.Proxy // between a node and Redis
}

// up starts a node with a relay to the others and a link to Redis of its own.
func (s *ticking) up(number int) {
	s.t.Helper()
	name := fmt.Sprintf("n%d", number)
	if s.links[name] == nil {
		s.links[name] = redistest.NewProxy(s.t, s.redis.Addr())
	}
	s.settings.Redis = s.links[name].URL()
	s.d.up(s.fleet, number)
}

// goesOn waits until ticks that come from now on have been pushed.
func (s *ticking) goesOn(when string) {
	s.t.Helper()
	book, now := recurring.Of(s.client), time.Now()
	s.await("ticks go on "+when, patience, func() bool {
		all, err := book.List(s.t.Context())
		return err == nil && len(all) == 2 && !slices.ContainsFunc(all,
			func(e recurring.Entry) bool { return e.Last == nil || e.Last.Before(now.Add(time.Second)) })
	})
}

func (s *ticking) kills(leader string) {
	s.crash(leader)
	s.goesOn("without " + leader)
	number, _ := strconv.Atoi(leader[1:])
	s.up(number)
}

func (s *ticking) freezes(leader string) {
	s.stop(leader)
	s.goesOn("while " + leader + " is frozen")
	s.nodes[leader].signal(syscall.SIGCONT)
}

func (s *ticking) cutsOffNode(leader string) {
	s.d.isolate(s.nodes[leader].pid())
	s.goesOn("while " + leader + " is alone")
	others := slices.DeleteFunc(s.list(), func(name string) bool { return name == leader })
	s.await("the others have a leader", patience, func() bool {
		known, err := s.status(others[0])
		return err == nil && known.Leader != "" && known.Leader != leader
	})
	s.goesOn("with two leaders")
	s.d.isolate(0)
}

func (s *ticking) cutsOffRedis(leader string) {
	link := s.links[leader]
	link.Refuse(true)
	link.DropAll()
	s.goesOn("while " + leader + " has no Redis")
	link.Refuse(false)
}

func (s *ticking) restartsRedis(string) {
	s.redis.Kill()
	<-time.After(300 * time.Millisecond) // two requests at least find nobody
	s.redis.Restart()
	s.goesOn("after Redis was away")
}

// counted says how many ticks of an entry were pushed. Each second between the first and the last one must be there
// once: among the payloads that wait, and among what Redis has written to its file.
func (s *ticking) counted(name string) int {
	s.t.Helper()
	q, err := s.client.Queue(s.t.Context(), ticksQueue)
	if err != nil {
		s.t.Fatal(err)
	}
	job, _, err := browse.Of(q).Job(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	var waiting []int64
	for _, p := range job.Payloads {
		var said struct{ At time.Time }
		if err := json.Unmarshal(p.Data, &said); err != nil {
			s.t.Fatal(err)
		}
		waiting = append(waiting, said.At.Unix())
	}
	slices.Sort(waiting)
	var taken []int64
	inScript := -1 // commands of the script so far; -1 outside of a MULTI
	for _, command := range s.written() {
		switch {
		case command[0] == "MULTI":
			inScript = 0
			continue
		case command[0] == "EXEC":
			inScript = -1
			continue
		case inScript >= 0:
			inScript++
		}
		// A script that stores nothing, because the number was taken in before, writes the number alone.
		if inScript > 1 && len(command) == 4 && command[0] == "HSET" && command[2] == "recurring/"+name {
			us, err := strconv.ParseInt(command[3], 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			taken = append(taken, us/1e6)
		}
	}
	for what, ticks := range map[string][]int64{"waits": waiting, "was taken in": taken} {
		for i, tick := range ticks {
			if want := ticks[0] + int64(i); tick != want {
				s.t.Errorf("%s: number %d of what %s is the tick %v, want %v", name, i, what, time.Unix(tick, 0).UTC(), time.Unix(want, 0).UTC())
				break
			}
		}
	}
	if len(waiting) != len(taken) || len(taken) == 0 {
		s.t.Errorf("%s: %d payloads wait, and pushes were taken in %d times, want as many", name, len(waiting), len(taken))
	}
	return len(taken)
}

// written are the commands of Redis's append-only file.
func (s *ticking) written() (commands [][]string) {
	s.t.Helper()
	said, err := s.admin().ConfigGet(s.t.Context(), "dir").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(said["dir"], "appendonlydir", "*.incr.aof"))
	if err == nil && len(files) == 0 { // before Redis 7
		files, err = filepath.Glob(filepath.Join(said["dir"], "appendonly.aof"))
	}
	if err != nil || len(files) == 0 {
		s.t.Fatalf("got the files %v, %v", files, err)
	}
	slices.SortFunc(files, func(x, y string) int { return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)) })
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			s.t.Fatal(err)
		}
		defer file.Close()
		in := bufio.NewReader(file)
		for {
			command, err := readCommand(in)
			if err == io.EOF {
				break
			}
			if err != nil {
				s.t.Fatalf("%s: %v", path, err)
			}
			commands = append(commands, command)
		}
	}
	return commands
}

// readCommand reads a command as clients send it.
func readCommand(in *bufio.Reader) (command []string, err error) {
	number := func(kind byte) (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if line[0] != kind {
			return 0, fmt.Errorf("got %q, want %c", line, kind)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	for i := 0; i < n && err == nil; i++ {
		var size int
		if size, err = number('$'); err == nil {
			word := make([]byte, size+2)
			if _, err = io.ReadFull(in, word); err == nil {
				command = append(command, string(word[:size]))
			}
		}
	}
	return command, err
}
