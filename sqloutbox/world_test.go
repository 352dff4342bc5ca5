package sqloutbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/embedded"
	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

const patience = 60 * time.Second // of tests, on a busy machine

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		runChild(spec)
		return
	}
	redis, err := embedded.Start() // for the example
	if err != nil {
		log.Fatal(err)
	}
	os.Setenv("REDIS_URL", redis.URL()) //nolint:errcheck // a constant name
	code := m.Run()
	redis.Close()
	stopPostgres()
	if err := leaktest.Check(); code == 0 && err != nil {
		log.Print(err)
		code = 1
	}
	os.Exit(code)
}

// database is a database with an empty outbox.
type database struct {
	*sql.DB
	dialect     Dialect
	driver, dsn string
}

// eachDatabase runs a test on each kind of database.
func eachDatabase(t *testing.T, test func(t *testing.T, db *database)) {
	t.Run("SQLite", func(t *testing.T) { t.Parallel(); test(t, newSQLite(t)) })
	t.Run("PostgreSQL", func(t *testing.T) { t.Parallel(); test(t, newPostgres(t)) })
}

func newSQLite(t testing.TB) *database {
	dsn := "file:" + filepath.Join(t.TempDir(), "test.db") + "?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate"
	return openDatabase(t, SQLite, "sqlite", dsn)
}

var databases atomic.Int64

func newPostgres(t testing.TB) *database {
	t.Helper()
	dir := requirePostgres(t)
	dsn := func(name string) string { return "host=" + dir + " user=lowkiq dbname=" + name }
	admin, err := sql.Open("pgx", dsn("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close() //nolint:errcheck // a test
	name := fmt.Sprint("test_", databases.Add(1))
	if _, err := admin.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	return openDatabase(t, PostgreSQL, "pgx", dsn(name))
}

func openDatabase(t testing.TB, d Dialect, driver, dsn string) *database {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for range 2 { // the statements may be repeated
		if _, err := db.Exec(Schema(d)); err != nil {
			t.Fatal(err)
		}
	}
	return &database{db, d, driver, dsn}
}

// add adds pushes in a transaction of their own.
func (db *database) add(t testing.TB, queueName string, pushes ...lowkiq.Push) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := Add(t.Context(), tx, queueName, pushes...); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// texts returns the rows of a query with a column, as one line.
func (db *database) texts(t *testing.T, query string, args ...any) string {
	t.Helper()
	rows, err := db.Query(query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close() //nolint:errcheck // a test
	var all []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return strings.Join(all, " ")
}

// await waits until a query returns a line.
func (db *database) await(t *testing.T, want, query string) {
	t.Helper()
	awaitCondition(t, func() (bool, string) {
		got := db.texts(t, query)
		return got == want, fmt.Sprintf("%s: got %.500q, want %q", query, got, want)
	})
}

func awaitCondition(t *testing.T, condition func() (ok bool, what string)) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		ok, what := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// The PostgreSQL of all tests of this process.
var postgres struct {
	once sync.Once
	dir  string // with the socket
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// errNoPostgres means that the machine has no PostgreSQL.
var errNoPostgres = errors.New("no initdb on PATH or in /usr/lib/postgresql")

func requirePostgres(t testing.TB) (dir string) {
	t.Helper()
	tier.Usual(t)
	postgres.once.Do(func() { postgres.err = startPostgres() })
	switch err := postgres.err; {
	case errors.Is(err, errNoPostgres) && !tier.IsAll():
		t.Skipf("SKIPPED: %v, so the outbox was NOT tested on PostgreSQL; apt-get install postgresql to test it", err)
	case err != nil:
		t.Fatal(err)
	}
	return postgres.dir
}

func startPostgres() error {
	bin, err := findPostgres()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lowkiq-pg")
	if err != nil {
		return err
	}
	postgres.dir = dir
	attributes := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Getuid() == 0 { // PostgreSQL does not run as root
		account, err := user.Lookup("postgres")
		if err != nil {
			return err
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			return err
		}
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "--no-sync", "-A", "trust", "-U", "lowkiq", "-E", "UTF8", "--locale=C", data)
	initdb.Dir, initdb.SysProcAttr = dir, &syscall.SysProcAttr{Credential: attributes.Credential}
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off",
		"-c", "deadlock_timeout=100ms", "-c", "max_connections=100", "-c", "log_min_messages=panic")
	cmd.Dir, cmd.SysProcAttr = dir, attributes
	postgres.cmd, postgres.done = cmd, make(chan struct{})
	started := make(chan error)
	go func() { // Pdeathsig depends on the thread that forked
		runtime.LockOSThread()
		defer close(postgres.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	db, err := sql.Open("pgx", "host="+dir+" user=lowkiq dbname=postgres")
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // a test
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if err = db.Ping(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func findPostgres() (bin string, err error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(paths) == 0 {
		return "", errNoPostgres
	}
	return filepath.Dir(paths[len(paths)-1]), nil
}

func stopPostgres() {
	if postgres.cmd != nil && postgres.cmd.Process != nil {
		_ = postgres.cmd.Process.Signal(syscall.SIGQUIT)
		<-postgres.done
	}
	if postgres.dir != "" {
		_ = os.RemoveAll(postgres.dir)
	}
}

// handledPayload is a payload that a handler got.
type handledPayload struct {
	id, payload string
	score       float64
	header      lowkiq.Header
}

// consumer handles a queue and remembers what it got, in order.
type consumer struct {
	mu      sync.Mutex
	handled []handledPayload
}

func (c *consumer) all() []handledPayload {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.handled)
}

// of returns the payloads of an id, as one line.
func (c *consumer) of(id string) string {
	var all []string
	for _, h := range c.all() {
		if h.id == id {
			all = append(all, h.payload)
		}
	}
	return strings.Join(all, " ")
}

// await waits until an id has got payloads.
func (c *consumer) await(t *testing.T, id, want string) {
	t.Helper()
	awaitCondition(t, func() (bool, string) {
		got := c.of(id)
		return got == want, fmt.Sprintf("id %s: got %q, want %q", id, got, want)
	})
}

func (c *consumer) Handle(_ context.Context, batch *lowkiq.Batch) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, job := range batch.Jobs {
		for _, p := range job.Payloads {
			c.handled = append(c.handled, handledPayload{job.ID, string(p.Data), p.Score, p.Header})
		}
	}
	return nil
}

func newClient(t testing.TB, url string) *queue.Client {
	t.Helper()
	client, err := queue.Open(queue.Config{Redis: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// consume runs a node that handles a queue, until the test ends.
func consume(t *testing.T, url, queueName string) *consumer {
	t.Helper()
	c := &consumer{}
	n, err := node.New(node.Config{Redis: url, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Handle(node.QueueConfig{Name: queueName, Shards: 2, Rules: rules.Rules{BatchSize: 5}}, c); err != nil {
		t.Fatal(err)
	}
	background(t, n.Run)
	return c
}

// background runs f until the returned function is called, or the test ends.
func background(t *testing.T, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop
}

// testRelay returns a relay for tests, which works fast.
func testRelay(db *database, client *queue.Client) Relay {
	return Relay{DB: db.DB, Client: client, Every: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler), term: 3 * time.Second}
}

// childEnv makes a run of the test program a relay that kills itself.
const childEnv = "LOWKIQ_TEST_OUTBOX"

type child struct {
	Driver, DSN, Redis string
	Step               step // after which it kills itself
}

// runRelayToDeath runs a relay in a process until the process has killed itself.
func runRelayToDeath(t *testing.T, c child) {
	t.Helper()
	spec, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), childEnv+"="+string(spec))
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("the relay did not reach step %d: %s", c.Step, out)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the relay ended with %v, want a kill: %s", err, out)
	}
}

func runChild(spec string) {
	var c child
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		log.Fatal(err)
	}
	db, err := sql.Open(c.Driver, c.DSN)
	if err != nil {
		log.Fatal(err)
	}
	client, err := queue.Open(queue.Config{Redis: c.Redis})
	if err != nil {
		log.Fatal(err)
	}
	r := Relay{DB: db, Client: client, Every: 10 * time.Millisecond, term: time.Second, hook: func(s step) {
		if s == c.Step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal is there
		}
	}}
	log.Fatal(r.Run(context.Background()))
}
