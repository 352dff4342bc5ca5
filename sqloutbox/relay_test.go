package sqloutbox

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/testing/redistest"
	"github.com/lowkiq/lowkiq/internal/testing/tier"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// payloads returns a push for each word.
func payloads(id, words string) (pushes []lowkiq.Push) {
	for word := range strings.FieldsSeq(words) {
		pushes = append(pushes, lowkiq.Push{ID: id, Payload: []byte(word)})
	}
	return pushes
}

func TestRelay(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *database) {
		url := redistest.Start(t).URL()
		got := consume(t, url, "mail")
		db.add(t, "mail", lowkiq.Push{ID: "later", Payload: []byte("x"), PerformAt: time.Now().Add(200 * time.Millisecond)},
			lowkiq.Push{ID: "empty"}, lowkiq.Push{ID: "ü", Payload: []byte("\x00\xff"), Header: map[string]string{"tag": "vip"}, Urgent: true})
		db.add(t, "mail", payloads("u1", "a b b c")...) // equal payloads that wait merge
		background(t, testRelay(db, newClient(t, url)).Run)
		got.await(t, "u1", "a b c")
		got.await(t, "ü", "\x00\xff")
		got.await(t, "later", "x")
		db.await(t, "0", "SELECT count(*) FROM lowkiq_outbox")
		for _, h := range got.all() {
			if h.id == "ü" && h.header.Get("tag") != "vip" || h.score < 1 || h.score > 7 {
				t.Errorf("got %+v, want the header, and the number of the row as the score", h)
			}
		}
		db.add(t, "mail", payloads("u1", "d")...)
		got.await(t, "u1", "a b c d")
	})
}

// A relay that is killed after a step loses nothing and keeps the order. What it has not removed comes again.
func TestKilledAfterEachStep(t *testing.T) {
	t.Parallel()
	tier.Usual(t)
	eachDatabase(t, func(t *testing.T, db *database) {
		url := redistest.Start(t).URL()
		got, client := consume(t, url, "mail"), newClient(t, url)
		for _, c := range []struct {
			step step
			want string
		}{
			{leased, "a b c"}, {read, "a b c"}, {pushed, "a b c a b c"}, {recorded, "a b c"},
		} {
			id := fmt.Sprint("after-", c.step)
			db.add(t, "mail", payloads(id, "a b c")...)
			runRelayToDeath(t, child{db.driver, db.dsn, url, c.step})
			if c.step >= pushed {
				got.await(t, id, "a b c")
			}
			stop := background(t, testRelay(db, client).Run)
			got.await(t, id, c.want)
			db.await(t, "0", "SELECT count(*) FROM lowkiq_outbox")
			stop()
		}
	})
}

// writeRandomly makes transactions that count for an id and add to the outbox, before or after they count. The count is
// the order in which they commit. Some are rolled back.
func writeRandomly(t *testing.T, db *database, writer, transactions int) {
	random := rand.New(rand.NewPCG(uint64(writer), 1))
	for n := range transactions {
		ids := []string{fmt.Sprint("id", random.IntN(4))}
		if random.IntN(3) == 0 {
			ids = append(ids, fmt.Sprint("other", random.IntN(4)))
		}
		addFirst, commit := random.IntN(2) == 0, random.IntN(5) > 0
		write := func() error {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				return err
			}
			defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
			token := fmt.Sprintf("%d.%d", writer, n)
			count := func() error {
				for _, id := range ids {
					var place int
					if err := tx.QueryRow("UPDATE counts SET n = n + 1 WHERE id = $1 RETURNING n", id).Scan(&place); err != nil {
						return err
					}
					if _, err := tx.Exec("INSERT INTO history (id, n, token) VALUES ($1, $2, $3)", id, place, token); err != nil {
						return err
					}
				}
				return nil
			}
			if !addFirst {
				if err := count(); err != nil {
					return err
				}
			}
			var pushes []lowkiq.Push
			for _, id := range ids {
				pushes = append(pushes, lowkiq.Push{ID: id, Payload: []byte(token)})
			}
			if err := Add(t.Context(), tx, "mail", pushes...); err != nil {
				return err
			}
			if addFirst {
				if err := count(); err != nil {
					return err
				}
			}
			if !commit {
				return nil
			}
			return tx.Commit()
		}
		for write() != nil { // a deadlock, or a busy database
			if t.Context().Err() != nil {
				return
			}
		}
	}
}

func createCounts(t *testing.T, db *database) {
	t.Helper()
	for _, statement := range []string{
		"CREATE TABLE counts (id text PRIMARY KEY, n integer NOT NULL)",
		"CREATE TABLE history (id text, n integer, token text)",
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		if _, err := db.Exec("INSERT INTO counts (id, n) VALUES ($1, 0), ($2, 0)", fmt.Sprint("id", i), fmt.Sprint("other", i)); err != nil {
			t.Fatal(err)
		}
	}
}

func committed(t *testing.T, db *database) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for i := range 4 {
		for _, id := range []string{fmt.Sprint("id", i), fmt.Sprint("other", i)} {
			all[id] = strings.Fields(db.texts(t, "SELECT token FROM history WHERE id = $1 ORDER BY n", id))
		}
	}
	return all
}

// Writers and relays work at once, and relays are killed after each step. Each id keeps the order of its commits.
func TestOrderUnderKills(t *testing.T) {
	t.Parallel()
	tier.Usual(t)
	eachDatabase(t, func(t *testing.T, db *database) {
		url := redistest.Start(t).URL()
		got, client := consume(t, url, "mail"), newClient(t, url)
		createCounts(t, db)
		var writers sync.WaitGroup
		for writer := range 6 {
			writers.Go(func() { writeRandomly(t, db, writer, tier.Of(10, 150, 300)) })
		}
		for _, s := range []step{pushed, read, pushed, leased, recorded, pushed} {
			db.add(t, "mail", lowkiq.Push{ID: "bait"})
			runRelayToDeath(t, child{db.driver, db.dsn, url, s})
		}
		for range 2 {
			background(t, testRelay(db, client).Run)
		}
		writers.Wait()
		db.await(t, "0", "SELECT count(*) FROM lowkiq_outbox")
		want := committed(t, db)
		var found []string
		awaitCondition(t, func() (bool, string) {
			found = objections(withoutBait(got.all()), want)
			return len(found) == 0, strings.Join(found, "\n")
		})
	})
}

func withoutBait(handled []handledPayload) (rest []handledPayload) {
	for _, h := range handled {
		if h.id != "bait" {
			rest = append(rest, h)
		}
	}
	return rest
}

// The number of a row is smaller than that of a row that is committed before it. The relay would push them in the order
// of their commits, if the second transaction did not wait for the first.
func TestLaterCommitOfAnEarlierAdd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change string // of the database
		want   string
	}{
		{"ids are locked", "", "first second"},
		{"ids are not locked", `CREATE OR REPLACE FUNCTION lowkiq_outbox_add() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN NEW.seq := nextval('lowkiq_outbox_seq'); RETURN NEW; END $$`, "second first"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newPostgres(t)
			if _, err := db.Exec(c.change); err != nil {
				t.Fatal(err)
			}
			url := redistest.Start(t).URL()
			got, client := consume(t, url, "mail"), newClient(t, url)
			first, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			if err := Add(t.Context(), first, "mail", lowkiq.Push{ID: "x", Payload: []byte("first")}); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			go func() {
				tx, err := db.Begin()
				if err == nil {
					err = Add(t.Context(), tx, "mail", lowkiq.Push{ID: "x", Payload: []byte("second")})
				}
				if err == nil {
					err = tx.Commit()
				}
				ended <- err
			}()
			waits := "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
			if c.change == "" {
				db.await(t, "1", waits)
			} else if err := <-ended; err != nil {
				t.Fatal(err)
			}
			background(t, testRelay(db, client).Run)
			db.add(t, "mail", lowkiq.Push{ID: "y", Payload: []byte("other")}) // another id does not wait
			got.await(t, "y", "other")
			if err := first.Commit(); err != nil {
				t.Fatal(err)
			}
			if c.change == "" {
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
			}
			got.await(t, "x", c.want)
			judged := objections(got.all(), map[string][]string{"x": {"first", "second"}, "y": {"other"}})
			if bad := len(judged) > 0; bad != (c.change != "") {
				t.Errorf("the judge says %v", judged)
			}
		})
	}
}

// The order of transaction ids is neither that of commits nor that of row numbers. In this schedule, a relay that read
// only rows below the oldest open transaction would push b before a. An open transaction holds nothing up.
func TestOpenTransactionHoldsNothingUp(t *testing.T) {
	t.Parallel()
	db := newPostgres(t)
	url := redistest.Start(t).URL()
	got, client := consume(t, url, "mail"), newClient(t, url)
	begin := func() *sql.Tx {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec("SELECT pg_current_xact_id()"); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	commit := func(tx *sql.Tx, payload string) {
		if err := Add(t.Context(), tx, "mail", lowkiq.Push{ID: "x", Payload: []byte(payload)}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	b, open, a := begin(), begin(), begin()
	defer open.Rollback() //nolint:errcheck // a test
	commit(a, "a")
	commit(b, "b")
	var oldest int64
	if err := open.QueryRow("SELECT pg_current_xact_id()::text::bigint").Scan(&oldest); err != nil {
		t.Fatal(err)
	}
	below := "SELECT convert_from(payload, 'UTF8') FROM lowkiq_outbox WHERE xmin::text::bigint < $1"
	if rows := db.texts(t, below, oldest); rows != "b" {
		t.Fatalf("got %q below the open transaction, want b alone", rows)
	}
	background(t, testRelay(db, client).Run)
	got.await(t, "x", "a b")
}

func TestRefusedRows(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *database) {
		url := redistest.Start(t).URL()
		client := newClient(t, url)
		small := queue.PushRules{Push: rules.Push{Payloads: 2, PayloadBytes: 100}}
		if err := client.SetRules("mail", small); err != nil {
			t.Fatal(err)
		}
		mail, err := client.Register(t.Context(), lowkiq.Queue{Name: "mail", Shards: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, payload := range []string{"w1", "w2"} { // nobody handles them yet
			if _, err := mail.Push(t.Context(), lowkiq.Push{ID: "full", Payload: []byte(payload)}); err != nil {
				t.Fatal(err)
			}
		}
		db.add(t, "unknown", payloads("x", "a b")...)
		db.add(t, "mail", lowkiq.Push{ID: "big", Payload: make([]byte, 101)})
		db.add(t, "mail", payloads("big", "a")...)
		db.add(t, "mail", payloads("full", "a b c")...)
		db.add(t, "mail", payloads("free", "a")...)
		background(t, testRelay(db, client).Run)

		// free and the rest of big are pushed, full and unknown wait, the large payload is set aside
		db.await(t, "3 5 6 7", "SELECT seq FROM lowkiq_outbox WHERE retry_at <> -1 AND queue = 'mail' OR seq = 3 ORDER BY seq")
		db.await(t, "3", "SELECT seq FROM lowkiq_outbox WHERE retry_at = -1")
		db.await(t, "1 3 5", "SELECT seq FROM lowkiq_outbox WHERE error <> '' ORDER BY seq")
		for seq, want := range map[int]string{1: "unknown queue", 3: "payload", 5: "too many payloads wait for this id"} {
			if text := db.texts(t, "SELECT error FROM lowkiq_outbox WHERE seq = $1", seq); !strings.Contains(text, want) {
				t.Errorf("row %d: got the error %q, want %q", seq, text, want)
			}
		}

		// the id is handled, the queue registered: they go on, in order
		if _, err := client.Register(t.Context(), lowkiq.Queue{Name: "unknown", Shards: 2}); err != nil {
			t.Fatal(err)
		}
		unknown, got := consume(t, url, "unknown"), consume(t, url, "mail")
		got.await(t, "full", "w1 w2 a b c")
		got.await(t, "big", "a")
		got.await(t, "free", "a")
		unknown.await(t, "x", "a b")
		db.await(t, "3", "SELECT seq FROM lowkiq_outbox")

		// a person changes the row and repeats it, or drops it
		if _, err := db.Exec("UPDATE lowkiq_outbox SET payload = 'small', retry_at = 0 WHERE seq = 3"); err != nil {
			t.Fatal(err)
		}
		got.await(t, "big", "a small")
	})
}

// Rows of a queue that nobody registers are set aside when they are old, and those of a full id.
func TestOldRowsAreSetAside(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *database) {
		url := redistest.Start(t).URL()
		client := newClient(t, url)
		if err := client.SetRules("mail", queue.PushRules{Push: rules.Push{Payloads: 1}}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Register(t.Context(), lowkiq.Queue{Name: "mail", Shards: 2}); err != nil {
			t.Fatal(err)
		}
		db.add(t, "unknown", payloads("x", "a b")...)
		db.add(t, "mail", payloads("full", "a b c")...)
		if _, err := db.Exec("UPDATE lowkiq_outbox SET tries = 9, added_at = added_at - 60000"); err != nil { // refusals, a row needs ten
			t.Fatal(err)
		}
		relay := testRelay(db, client)
		relay.Patience = time.Minute
		background(t, relay.Run)
		db.await(t, "1 2 4 5", "SELECT seq FROM lowkiq_outbox WHERE retry_at = -1 ORDER BY seq")
		db.await(t, "4", "SELECT count(*) FROM lowkiq_outbox")
	})
}

// An error may quote any bytes. It stops no outbox, whatever its database can store.
func TestErrorOfAnyBytes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *database) {
		url := redistest.Start(t).URL()
		client, got := newClient(t, url), consume(t, url, "mail")
		bad := func(_ string, next queue.Pusher) queue.Pusher {
			return func(ctx context.Context, jobs []lowkiq.Push) ([]queue.Result, error) {
				if string(jobs[0].Payload) == "bad" {
					results := make([]queue.Result, len(jobs))
					results[0].Err = fmt.Errorf("%w: \x00 \xff %s", queue.ErrID, strings.Repeat("long ", 10_000))
					return results, results[0].Err
				}
				return next(ctx, jobs)
			}
		}
		if err := client.SetRules("mail", queue.PushRules{Middlewares: []queue.Middleware{bad}}); err != nil {
			t.Fatal(err)
		}
		db.add(t, "mail", payloads("x", "bad")...)
		background(t, testRelay(db, client).Run)
		db.await(t, "1", "SELECT seq FROM lowkiq_outbox WHERE retry_at = -1 AND length(error) BETWEEN 4000 AND 4096")
		db.add(t, "mail", payloads("x", "good")...)
		got.await(t, "x", "good")
	})
}

// A program in any language adds a row by SQL. The database sets the rest, and the order holds.
func TestRowsOfOtherLanguages(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *database) {
		url := redistest.Start(t).URL()
		got := consume(t, url, "mail")
		due := time.Now().Add(300 * time.Millisecond).UnixMicro()
		for _, statement := range []string{
			"INSERT INTO lowkiq_outbox (queue, id, payload) VALUES ('mail', 'x', 'a')",
			"INSERT INTO lowkiq_outbox (queue, id, payload, header) VALUES ('mail', 'x', 'b', '{\"tag\":\"vip\"}')",
			"INSERT INTO lowkiq_outbox (queue, id, payload) VALUES ('mail', 'x', 'c'), ('mail', 'x', 'd')",
			fmt.Sprint("INSERT INTO lowkiq_outbox (queue, id, payload, perform_at) VALUES ('mail', 'later', 'e', ", due, ")"),
			"INSERT INTO lowkiq_outbox (queue, id, payload) VALUES ('lowkiq.workflows', 'x', 'f')", // belongs to lowkiq
		} {
			if _, err := db.Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
		background(t, testRelay(db, newClient(t, url)).Run)
		got.await(t, "x", "a b c d")
		got.await(t, "later", "e")
		for _, h := range got.all() {
			if h.payload == "b" && h.header.Get("tag") != "vip" {
				t.Errorf("got the headers %q, want the tag", h.header)
			}
		}
		db.await(t, "6", "SELECT seq FROM lowkiq_outbox WHERE retry_at = -1")
		if text := db.texts(t, "SELECT error FROM lowkiq_outbox"); !strings.Contains(text, "belong to lowkiq") {
			t.Errorf("got the error %q", text)
		}
	})
}

// Rows of other ids go on while many rows wait behind a refused row.
func TestRowsBehindARefusedRow(t *testing.T) {
	t.Parallel()
	tier.Usual(t)
	eachDatabase(t, func(t *testing.T, db *database) {
		url := redistest.Start(t).URL()
		got := consume(t, url, "mail")
		const n = 100_000
		all := "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n WHERE k < " + fmt.Sprint(n) + ") "
		if _, err := db.Exec(all + "INSERT INTO lowkiq_outbox (queue, id, payload) SELECT 'mail', 'hot', 'x' FROM n"); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec("UPDATE lowkiq_outbox SET retry_at = (SELECT ms FROM lowkiq_outbox_clock) + 3600000, tries = 1 WHERE seq = 1"); err != nil {
			t.Fatal(err)
		}
		db.add(t, "mail", payloads("free", "a")...)
		table := table{db.DB}
		begun := time.Now()
		page, _, err := table.page(t.Context(), "mail")
		if took := time.Since(begun); err != nil || len(page) != 1 || page[0].id != "free" {
			t.Errorf("got %d rows, %v, want the row of free", len(page), err)
		} else {
			t.Logf("%d rows behind a refused row: a page takes %s", n, took)
		}
		background(t, testRelay(db, newClient(t, url)).Run)
		got.await(t, "free", "a")
	})
}

// Of two relays one works. When it ends, the other goes on at once.
func TestRelaysTakeTurns(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *database) {
		url := redistest.Start(t).URL()
		got, client := consume(t, url, "mail"), newClient(t, url)
		first := testRelay(db, client)
		first.term = time.Hour
		stop := background(t, first.Run)
		db.add(t, "mail", payloads("x", "a")...)
		got.await(t, "x", "a")
		second := testRelay(db, client)
		took := make(chan struct{}, 100)
		second.hook = func(s step) {
			if s == leased {
				took <- struct{}{}
			}
		}
		background(t, second.Run)
		db.add(t, "mail", payloads("x", "b")...)
		got.await(t, "x", "a b")
		if len(took) > 0 {
			t.Error("two relays work at once")
		}
		stop()
		db.add(t, "mail", payloads("x", "c")...)
		got.await(t, "x", "a b c")
		if len(took) == 0 {
			t.Error("the second relay has pushed without the lease")
		}
	})
}

// While Redis is away the outbox grows. A queue whose push fails does not stop the others.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	tier.Usual(t)
	eachDatabase(t, func(t *testing.T, db *database) {
		server := redistest.Start(t, "--appendonly", "yes")
		client := newClient(t, server.URL())
		if _, err := client.Register(t.Context(), lowkiq.Queue{Name: "mail", Shards: 2}); err != nil {
			t.Fatal(err)
		}
		failed := make(chan struct{}, 100)
		relay := testRelay(db, client)
		relay.hook = func(s step) {
			if s == recorded {
				select {
				case failed <- struct{}{}:
				default:
				}
			}
		}
		server.Stop()
		background(t, relay.Run)
		db.add(t, "mail", payloads("x", "a b")...)
		<-failed
		db.await(t, "2", "SELECT count(*) FROM lowkiq_outbox WHERE retry_at = 0")
		server.Restart()
		db.await(t, "0", "SELECT count(*) FROM lowkiq_outbox")
		consume(t, server.URL(), "mail").await(t, "x", "a b")
	})
}

// If the database does not take the outcome of a push, the relay writes the outcome before it pushes again. So nothing
// is pushed twice.
func TestOutcomeIsWrittenLater(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, db *database) {
		url := redistest.Start(t).URL()
		got, client := consume(t, url, "mail"), newClient(t, url)
		if _, err := client.Register(t.Context(), lowkiq.Queue{Name: "mail", Shards: 2}); err != nil {
			t.Fatal(err)
		}
		run := newRun(testRelay(db, client))
		run.hook = func(s step) {
			if s == pushed {
				if _, err := db.Exec("ALTER TABLE lowkiq_outbox RENAME TO hidden"); err != nil {
					t.Error(err)
				}
			}
		}
		db.add(t, "mail", payloads("x", "a")...)
		if _, err := run.turn(t.Context()); err == nil || run.outcome == nil {
			t.Fatalf("got %v and the outcome %v, want an error and the outcome", err, run.outcome)
		}
		if _, err := db.Exec("ALTER TABLE hidden RENAME TO lowkiq_outbox"); err != nil {
			t.Fatal(err)
		}
		got.await(t, "x", "a")
		run.hook = func(step) {}
		if _, err := run.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
		db.await(t, "0", "SELECT count(*) FROM lowkiq_outbox")
		run.end(t.Context())
		db.add(t, "mail", payloads("x", "b")...)
		background(t, testRelay(db, client).Run)
		got.await(t, "x", "a b")
	})
}

// A page has few bytes, whatever the size of payloads, and more queues than a turn takes are all relayed.
func TestPages(t *testing.T) {
	t.Parallel()
	db := newSQLite(t)
	large := lowkiq.Push{ID: "x", Payload: make([]byte, 3<<20)}
	db.add(t, "mail", large, large, large, large)
	page, full, err := table{db.DB}.page(t.Context(), "mail")
	if err != nil || len(page) != 2 || !full {
		t.Errorf("got %d rows, %v, %v, want 2 of 3 MiB, and more", len(page), full, err)
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxQueues + 5 {
		if err := Add(t.Context(), tx, fmt.Sprintf("q%04d", i), lowkiq.Push{ID: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	first, err := table{db.DB}.queues(t.Context(), "")
	if err != nil || len(first) != maxQueues || first[0] != "mail" {
		t.Fatalf("got %d queues, %v, want %d from mail", len(first), err, maxQueues)
	}
	rest, err := table{db.DB}.queues(t.Context(), first[maxQueues-1])
	if err != nil || len(rest) != 6 || rest[5] != "q1004" {
		t.Errorf("got %v, %v, want the other 6", rest, err)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	db, client := newSQLite(t).DB, &queue.Client{}
	for want, r := range map[string]Relay{
		"Relay.DB is nil":      {Client: client},
		"Relay.Client is nil":  {DB: db},
		"Relay.Every is -1ns":  {DB: db, Client: client, Every: -1},
		"Relay.Patience -1ns;": {DB: db, Client: client, Patience: -1},
	} {
		if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
