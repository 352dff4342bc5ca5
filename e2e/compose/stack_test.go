package compose

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// stack is one run of the deployment, under a project name of its own.
type stack struct {
	t       *testing.T
	compose []string // docker compose or docker-compose, with its files
	project string
	env     []string
	images  []string
	secrets string // directory of secrets.sh
}

// engine returns how to call compose. It skips the test, loudly, where there is none.
func engine(t *testing.T) []string {
	t.Helper()
	if out, err := exec.Command("docker", "version", "--format", "{{.Server.Version}}").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: NO DOCKER ENGINE answers, so the deployment in deploy/compose was NOT TESTED: %v %s", err, out)
	}
	for _, compose := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if exec.Command(compose[0], append(compose[1:], "version")...).Run() == nil {
			return compose
		}
	}
	t.Skip("SKIPPED: A DOCKER ENGINE WITHOUT COMPOSE, so the deployment in deploy/compose was NOT TESTED: install docker compose")
	return nil
}

func newStack(t *testing.T) *stack {
	t.Helper()
	compose := engine(t)
	project := "lowkiq" + strings.ToLower(rand.Text()[:8])
	s := &stack{t: t, project: project, images: []string{project + "/node", project + "/redis"}}
	dir := filepath.Join(root, "deploy", "compose")
	s.compose = append(compose, "-p", project, "-f", filepath.Join(dir, "compose.yml"), "-f", filepath.Join(dir, "compose.test.yml"))
	net := rand.Text()
	s.secrets = filepath.Join(t.TempDir(), "secrets")
	if out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "secrets.sh"), s.secrets).CombinedOutput(); err != nil {
		t.Fatalf("secrets.sh: %v\n%s", err, out)
	}
	s.env = append(os.Environ(), "LOWKIQ_SECRETS="+s.secrets, "LOWKIQ_TEST_NODE_IMAGE="+s.images[0], "LOWKIQ_TEST_REDIS_IMAGE="+s.images[1],
		fmt.Sprintf("LOWKIQ_TEST_SUBNET=10.%d.%d.0/24", 100+net[0]%100, net[1]), "DOCKER_BUILDKIT=0", "COMPOSE_INTERACTIVE_NO_CLI=1")
	t.Cleanup(s.remove)
	s.docker("build", "-q", "-t", s.images[0], nodeContext(t))
	s.docker("build", "-q", "-t", s.images[1], redisContext(t))
	return s
}

// remove leaves no container, network, volume or image behind.
func (s *stack) remove() {
	if s.t.Failed() {
		out, _ := s.run(context.Background(), append(s.compose, "logs", "--no-color", "--tail", "30")...)
		s.t.Logf("logs:\n%s", out)
	}
	if out, err := s.run(context.Background(), append(s.compose, "down", "-v", "--remove-orphans", "-t", "1")...); err != nil {
		s.t.Errorf("compose down: %v\n%s", err, out)
	}
	if out, err := s.run(context.Background(), append([]string{"docker", "image", "rm", "-f"}, s.images...)...); err != nil {
		s.t.Errorf("remove images: %v\n%s", err, out)
	}
	for _, list := range []string{"ps -aq", "network ls -q", "volume ls -q"} {
		args := append(strings.Fields("docker "+list), "--filter", "label=com.docker.compose.project="+s.project)
		if out, err := s.run(context.Background(), args...); err != nil || len(out) > 0 {
			s.t.Errorf("docker %s: %v, left behind: %s", list, err, out)
		}
	}
}

func (s *stack) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var out, stderr bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, &out, &stderr
	if err := cmd.Run(); err != nil {
		return append(out.Bytes(), stderr.Bytes()...), fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return bytes.TrimSpace(out.Bytes()), nil
}

func (s *stack) must(args ...string) string {
	s.t.Helper()
	out, err := s.run(s.t.Context(), args...)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func (s *stack) docker(args ...string) string {
	s.t.Helper()
	return s.must(append([]string{"docker"}, args...)...)
}

// up starts services, or scales the nodes.
func (s *stack) up(nodes int, services ...string) {
	s.t.Helper()
	args := append([]string{}, s.compose...)
	args = append(args, "up", "-d", "--no-build", "--no-recreate", "--scale", fmt.Sprintf("node=%d", nodes))
	s.must(append(args, services...)...)
}

// containers are the ids of a service's running containers.
func (s *stack) containers(service string) []string {
	s.t.Helper()
	return strings.Fields(s.docker("ps", "-q", "--filter", "label=com.docker.compose.project="+s.project,
		"--filter", "label=com.docker.compose.service="+service))
}

// status is what the nodes say.
type status struct {
	Nodes []struct {
		Name   string
		State  string
		Shards int
	}
	Queues []struct {
		Jobs map[string]int
	}
}

// live are the shards of each live node. ok: some node answered.
func (st status) live() map[string]int {
	shards := map[string]int{}
	for _, n := range st.Nodes {
		if n.State == "live" {
			shards[n.Name] = n.Shards
		}
	}
	return shards
}

func (st status) waiting() int {
	n := 0
	for _, q := range st.Queues {
		for _, jobs := range q.Jobs {
			n += jobs
		}
	}
	return n
}

// ask asks the cluster through one of its containers.
func (s *stack) ask(through string) (st status, err error) {
	out, err := s.run(s.t.Context(), "docker", "exec", through, "/lowkiq-node", "status", "-o", "json")
	if err != nil {
		return st, err
	}
	return st, json.Unmarshal(out, &st)
}

// await waits until the cluster, asked through a container, is as it should be, and
// returns how long that took.
func (s *stack) await(what, through string, within time.Duration, good func(status) bool) time.Duration {
	s.t.Helper()
	began, last := time.Now(), ""
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < within {
		st, err := s.ask(through)
		if err == nil && good(st) {
			s.t.Logf("%s: after %.1f s", what, time.Since(began).Seconds())
			return time.Since(began)
		}
		last = fmt.Sprintf("%+v, %v", st, err)
		<-tick.C
	}
	s.t.Fatalf("not within %s: %s; last: %s", within, what, last)
	return 0
}

// shared reports whether so many live nodes share all shards fairly.
func shared(nodes, shards int) func(status) bool {
	return func(st status) bool {
		live, sum := st.live(), 0
		for _, n := range live {
			if n < shards/nodes || n > (shards+nodes-1)/nodes {
				return false
			}
			sum += n
		}
		return len(live) == nodes && sum == shards
	}
}

// file copies a file out of a container.
func (s *stack) file(container, path string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), "docker", "cp", container+":"+path, "-")
	packed, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("docker cp %s: %v", path, err)
	}
	archive := tar.NewReader(bytes.NewReader(packed))
	if _, err := archive.Next(); err != nil {
		s.t.Fatal(err)
	}
	text, err := io.ReadAll(archive)
	if err != nil {
		s.t.Fatal(err)
	}
	to := filepath.Join(s.t.TempDir(), filepath.Base(path))
	write(s.t, to, string(text))
	return to
}
