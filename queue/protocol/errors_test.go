package protocol_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq/queue/audit"
	. "github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
)

var inputTests = []testCase{{"BadInput", testBadInput}, {"BadQueues", testBadQueues}}

func testBadInput(t *testing.T, b *backend) {
	r := newRig(t, b)
	r.noErr(r.c.SetRules("q", PushRules{Push: rules.Push{PayloadBytes: 100}}))
	r.push(job("a", "1"))
	before := r.dump()
	for name, c := range map[string]struct {
		push lowkiq.Push
		want error
		says string
	}{
		"empty id":         {job("", "1"), ErrID, "empty"},
		"over-long id":     {job(strings.Repeat("x", 513), "1"), ErrID, "512"},
		"payload too long": {job("a", strings.Repeat("x", 101)), ErrPayloadSize, "100"},
		"NaN":              {job("a", "1", score(math.NaN())), ErrScore, "NaN"},
		"+Inf":             {job("a", "1", score(math.Inf(1))), ErrScore, "Inf"},
		"-Inf":             {job("a", "1", score(math.Inf(-1))), ErrScore, "Inf"},
		"a delay":          {job("a", "1", func(p *lowkiq.Push) { p.PerformAt = time.Unix(10, 0) }), ErrPerformAt, "1970-01-01T00:00:10Z is no time from 2001-09-09T01:46:40Z to 2242"},
		"zero seconds":     {job("a", "1", func(p *lowkiq.Push) { p.PerformAt = time.Unix(0, 0) }), ErrPerformAt, "1970"},
		"milliseconds":     {job("a", "1", func(p *lowkiq.Push) { p.PerformAt = time.Unix(1763600000000, 0) }), ErrPerformAt, "2242"},
		"before 1970":      {job("a", "1", func(p *lowkiq.Push) { p.PerformAt = time.Unix(-1, 0) }), ErrPerformAt, "1969"},
		"far future":       {job("a", "1", func(p *lowkiq.Push) { p.PerformAt = time.Unix(1<<40, 0) }), ErrPerformAt, "perform_in"},
	} {
		results, err := r.q.Push(r.ctx, c.push)
		if !errors.Is(err, c.want) || !errors.Is(results[0].Err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %v with %q", name, err, c.want, c.says)
		}
		if Transient(err) {
			t.Errorf("%s: is transient, want final", name)
		}
	}
	if got, err := r.c.Push(r.ctx, "x", job("a", "1")); !errors.Is(err, lowkiq.ErrUnknownQueue) || !strings.Contains(err.Error(), `"x" (known: q)`) {
		t.Errorf("unknown queue: got %v, %v", got, err)
	}
	eq(t, "redis after bad input", r.dump(), before)
	// A bad job among good ones is refused alone, also in bulk.
	var jobs []lowkiq.Push
	for i := range 100 {
		jobs = append(jobs, job(fmt.Sprint("id", i), "1"))
	}
	jobs[50].ID = ""
	results, err := r.q.Push(r.ctx, jobs...)
	if !errors.Is(err, ErrID) || results[49].Err != nil || results[51].Err != nil {
		t.Errorf("bulk: got %v, %v, %v", err, results[49], results[51])
	}
	eq(t, "stored", len(r.drain()), 100)
}

func testBadQueues(t *testing.T, b *backend) {
	r := newRig(t, b)
	before := r.dump()
	for _, q := range []lowkiq.Queue{
		{Name: "new", Shards: 0}, {Name: "new", Shards: -1}, {Name: "new", Shards: lowkiq.MaxShards + 1},
		{Name: "", Shards: 1}, {Name: "{a}", Shards: 1}, {Name: "a/b", Shards: 1}, {Name: "a:b", Shards: 1}, {Name: "a b", Shards: 1},
		{Name: strings.Repeat("x", 129), Shards: 1}, {Name: "-a", Shards: 1}, {Name: "a\n", Shards: 1},
	} {
		if _, err := r.c.Register(r.ctx, q); err == nil {
			t.Errorf("register %.20q with %d shards: got nil, want an error", q.Name, q.Shards)
		}
	}
	_, err := r.c.Register(r.ctx, lowkiq.Queue{Name: "q", Shards: 2})
	if !errors.Is(err, lowkiq.ErrShardCount) || !strings.Contains(err.Error(), "configure 1") {
		t.Errorf("register with 2 shards: got %v, want %v that says what is right", err, lowkiq.ErrShardCount)
	}
	eq(t, "redis after bad queues", r.dump(), before)
	r.noErr(r.c.Registry().Pause(r.ctx, "q"))
	entries, err := r.c.Registry().Entries(r.ctx)
	r.noErr(err)
	eq(t, "paused", entries["q"], RegistryEntry{Shards: 1, Layout: 1, Paused: true})
	r.noErr(r.c.Registry().Resume(r.ctx, "q"))
	eq(t, "redis after resume", r.dump(), before)
	// A later release may have written more fields, which must be kept.
	const later = `{"shards":1,"layout":1,"from":{"shards":12345678901234567890},"z":"\u00e9"}`
	r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.c.DB().Keys.Queues(), "q", later).Err())
	for _, step := range []struct {
		name string
		do   func() error
		want string
	}{
		{"pause", func() error { return r.c.Registry().Pause(r.ctx, "q") }, `{"shards":1,"layout":1,"paused":true,"from":{"shards":12345678901234567890},"z":"\u00e9"}`},
		{"register while it is paused", func() error { _, err := r.c.Register(r.ctx, lowkiq.Queue{Name: "q", Shards: 1}); return err }, `{"shards":1,"layout":1,"paused":true,"from":{"shards":12345678901234567890},"z":"\u00e9"}`},
		{"resume", func() error { return r.c.Registry().Resume(r.ctx, "q") }, later},
	} {
		r.noErr(step.do())
		got, err := r.c.DB().ForTests().HGet(r.ctx, r.c.DB().Keys.Queues(), "q").Result()
		r.noErr(err)
		eq(t, "entry of a later release after "+step.name, got, step.want)
	}
	// A queue that needs a feature of a later release is refused as a whole, before anything is touched.
	r.noErr(r.c.DB().ForTests().HSet(r.ctx, r.c.DB().Keys.Queues(), "q", `{"shards":1,"layout":1,"needs":["fmt2"]}`).Err())
	older := b.open(t, func(cfg *Config) { cfg.Cluster = r.c.Cluster() })
	was := r.dump()
	_, err1 := older.Register(r.ctx, lowkiq.Queue{Name: "q", Shards: 1})
	_, err2 := older.Queue(r.ctx, "q")
	for door, err := range map[string]error{"register": err1, "open": err2, "pause": older.Registry().Pause(r.ctx, "q"), "resume": older.Registry().Resume(r.ctx, "q")} {
		if err == nil || !strings.Contains(err.Error(), "needs fmt2") {
			t.Errorf("%s of a queue of a later release: got %v, want an error that names the feature", door, err)
		}
	}
	report, err := audit.Run(r.ctx, older, audit.Config{})
	if err != nil || len(report.Faults) != 1 || report.Faults[0].Kind != audit.RegistryDamaged || report.Shards != 0 {
		t.Errorf("audit: got %+v, %v, want one fault and no shard looked at", report, err)
	}
	eq(t, "redis after a queue of a later release", r.dump(), was)
	r.noErr(r.c.DB().ForTests().Del(r.ctx, r.c.DB().Keys.Queues()).Err())
	if err := r.c.Registry().Pause(r.ctx, "q"); !errors.Is(err, lowkiq.ErrUnknownQueue) {
		t.Errorf("pause of a queue that Redis forgot: got %v, want %v", err, lowkiq.ErrUnknownQueue)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg  Config
		says string
	}{
		"cluster with braces":  {Config{Cluster: "{a}"}, "cluster name"},
		"no scheme":            {Config{Redis: "user:secret@host:1"}, "it must begin with redis://"},
		"other scheme":         {Config{Redis: "http://u:secret@host"}, `scheme "http"`},
		"a Unix socket":        {Config{Redis: "unix:///var/run/redis.sock"}, "a Unix socket is not supported; it must be redis://host:port"},
		"two hosts":            {Config{Redis: "redis://:secret@a,b"}, "several hosts"},
		"no master":            {Config{Redis: "redis+sentinel://:secret@a"}, "name the master"},
		"cluster database":     {Config{Redis: "redis+cluster://:secret@a/1"}, "database 0 only"},
		"database":             {Config{Redis: "redis://:secret@a/x"}, `database "x"`},
		"slash in password":    {Config{Redis: "redis://:sec/ret@a/0"}, "URL-encoded"},
		"bad escape":           {Config{Redis: "redis://:secret%zz@a/0"}, "URL-encoded"},
		"no host":              {Config{Redis: "redis://:secret@/0"}, "host is missing"},
		"TLS nowhere":          {Config{Redis: "redis://:secret@a", TLS: &tls.Config{}}, "it must begin with rediss://"},
		"TLS said elsewhere":   {Config{Redis: "redis+cluster+tls://:secret@a"}, "or rediss for TLS"},
		"no sentinel login":    {Config{Redis: "redis+sentinel://a/m?sentinel_pasword=secret"}, "they must be sentinel_user and sentinel_password"},
		"bad sentinel escape":  {Config{Redis: "redis+sentinel://a/m?sentinel_password=secret%zz"}, "sentinel_password is not URL-encoded"},
		"sentinel user alone":  {Config{Redis: "redis+sentinel://a/m?sentinel_user=u"}, "needs sentinel_password"},
		"at in a query":        {Config{Redis: "redis+sentinel://a/m?sentinel_password=sec@ret"}, "URL-encoded"},
		"and in a query":       {Config{Redis: "redis+sentinel://a/m?sentinel_password=x&secret"}, "URL-encoded"},
		"login of no cluster":  {Config{Redis: "redis+cluster://a?sentinel_password=secret"}, "redis+sentinel://"},
		"login of no sentinel": {Config{Redis: "redis://a/0?sentinel_password=secret"}, "redis+sentinel://"},
		"a port too large":     {Config{Redis: "redis://:secret@a:99999"}, `port "99999"; it must be a number from 1 to 65535`},
		"a word as port":       {Config{Redis: "redis://:secret@a:redis"}, `port "redis"; it must be a number`},
		"a port alone":         {Config{Redis: "redis://:secret@:6379"}, "host is missing"},
		"a user alone":         {Config{Redis: "redis://secret@a"}, "a user without a password; it must be redis://USER:PASSWORD@host, or redis://:PASSWORD@host for a password alone"},
		"slash and query":      {Config{Redis: "redis://u:sec/ret?x@h/0"}, "URL-encoded"},
	} {
		_, err := Open(c.cfg)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want an error that says %q", name, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), "ret") {
			t.Errorf("%s: the error %v shows the password", name, err)
		}
	}
}

func TestAddressForms(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h":                           "h:6379",
		"redis://u:p%40ss@h:1/3":              "h:1",
		"redis+sentinel://a,b:2/m/4":          "a:26379,b:2",
		"redis+cluster://:p@a:1,b:2,[::1]:3/": "a:1,b:2,[::1]:3",
		"rediss://[::1]":                      "[::1]:6379",
		"rediss+sentinel://a/m":               "a:26379",
		"redis+sentinel://:p%40@a/m/1?sentinel_user=u&sentinel_password=p%26": "a:26379",
		"redis://u:p?w@h":        "h:6379",
		"rediss+cluster://a,b:1": "a:6379,b:1",
	} {
		c, err := Open(Config{Redis: url})
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		eq(t, url, c.Redis(), want)
		for range 2 {
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	}
	eq(t, "masked", redisdb.MaskURL("redis://u:secret@h:1/0"), "redis://u:***@h:1/0")
	eq(t, "masked", redisdb.MaskURL("redis+sentinel://h?sentinel_password=se@cret"), "redis+sentinel://***@cret")
	eq(t, "masked", redisdb.MaskURL("redis://secret@h:1/0"), "redis://***@h:1/0")
	eq(t, "masked", redisdb.MaskURL("user:secret@h"), "***@h")
	eq(t, "masked", redisdb.MaskURL("h:1"), "h:1")
	eq(t, "masked", redisdb.MaskURL("redis://u:p?w@h:1/0"), "redis://u:***@h:1/0")
	eq(t, "masked", redisdb.MaskURL("redis+sentinel://u:secret@h/m?sentinel_password=secret"), "redis+sentinel://u:***@h/m?***")
}

// TestErrorKinds asks real Redis servers for their errors.
func TestErrorKinds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	timeout := time.Minute
	push := func(url string) (*Client, error) {
		c := (&backend{url: url}).open(t, func(c *Config) { c.Timeout = timeout })
		_, err := c.Register(t.Context(), lowkiq.Queue{Name: "q", Shards: 1})
		return c, err
	}
	proxy := redistest.NewProxy(t, server.Addr())
	replica := redistest.Start(t, "--replicaof", strings.Replace(server.Addr(), ":", " ", 1), "--replica-serve-stale-data", "yes")
	half := redistest.Start(t, "--cluster-enabled", "yes") // a cluster node without slots
	check := func(name, url string, unreachable bool, says string) {
		t.Helper()
		c, err := push(url)
		if err == nil || !Transient(err) || Unreachable(err) != unreachable || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), c.Redis()) {
			t.Errorf("%s: got %v (transient %v, unreachable %v), want one with %q and %s, transient, unreachable %v", name, err, Transient(err), Unreachable(err), says, c.Redis(), unreachable)
		}
	}
	proxy.CutBeforeReply(1)
	check("lost reply", proxy.URL(), true, "EOF")
	proxy.Refuse(true)
	check("refused", proxy.URL(), true, "refused")
	check("replica", replica.URL(), false, "READONLY")
	check("no slots", half.URL(), false, "CLUSTERDOWN")
	server.Pause()
	timeout = time.Second
	check("frozen", server.URL(), true, "timeout")
	server.Resume()
	c := (&backend{url: server.URL()}).open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Registry().Entries(ctx); err == nil || Transient(err) {
		t.Errorf("cancelled: got %v, want an error that is not transient", err)
	}
}

type answer string

func (a answer) Error() string { return string(a) }
func (answer) RedisError()     {}

func TestTransient(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err                    error
		transient, unreachable bool
	}{
		"nil":              {nil, false, false},
		"loading":          {answer("LOADING Redis is loading the dataset in memory"), true, false},
		"slot moving":      {answer("TRYAGAIN Multiple keys request during rehashing of slot"), true, false},
		"too many clients": {answer("ERR max number of clients reached"), true, false},
		"moved":            {answer("MOVED 1 host:1"), true, false},
		"6.2, full":        {answer("ERR Error running script (call to f_0): @user_script:1: @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'."), true, false},
		"6.2, other":       {answer("ERR Error running script (call to f_0): @user_script:1: user_script:1: attempt to index a nil value"), false, false},
		"wrong type":       {answer("WRONGTYPE Operation against a key"), false, false},
		"password":         {answer("WRONGPASS invalid username-password pair"), false, false},
		"fenced":           {&FencedError{}, false, false},
		"held":             {ErrHeld, false, false},
		"cancelled":        {context.Canceled, false, false},
		"cancelled dial":   {&net.OpError{Op: "dial", Err: context.Canceled}, false, false},
		"deadline":         {context.DeadlineExceeded, true, true},
		"end":              {io.EOF, true, true},
		"pool":             {redis.ErrPoolTimeout, true, true},
		"closed":           {redis.ErrClosed, false, false},
		"sentinels":        {errors.New("redis: all sentinels specified in configuration are unreachable"), true, true},
		"queue named pool": {fmt.Errorf("shard pool/3: %w", packed.ErrDamaged), false, false},
		"damaged":          {fmt.Errorf("connection/1: %w", packed.ErrDamaged), false, false},
	} {
		for _, err := range []error{c.err, wrapped(c.err)} {
			eq(t, name+" transient", Transient(err), c.transient)
			eq(t, name+" unreachable", Unreachable(err), c.unreachable)
		}
	}
}

func wrapped(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("shard q/1: %w", fmt.Errorf("push: redis h:1: %w", err))
}
