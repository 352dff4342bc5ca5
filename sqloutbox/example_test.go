package sqloutbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"

	_ "modernc.org/sqlite" // or github.com/jackc/pgx/v5/stdlib for PostgreSQL

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/sqloutbox"
)

// A program that changes an order and pushes a job in a single transaction. It relays its outbox and handles the job,
// which other programs may do as well.
func Example() {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // an example
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "shop.db")+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // an example
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	n, err := node.New(node.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "outbox"})
	if err != nil {
		log.Fatal(err)
	}
	if err := migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	if _, err := n.Client().Register(ctx, lowkiq.Queue{Name: "mails", Shards: 4}); err != nil {
		log.Fatal(err)
	}
	if err := pay(ctx, db, "order-1"); err != nil {
		log.Fatal(err)
	}
	err = n.Handle(node.QueueConfig{Name: "mails"}, lowkiq.Each(func(_ context.Context, id string, state string) error {
		fmt.Printf("mail about %s: %s\n", id, state)
		stop() // an example ends; a worker would go on
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	var relay sync.WaitGroup
	relay.Go(func() {
		err := sqloutbox.Relay{DB: db, Client: n.Client()}.Run(ctx)
		if err != nil {
			log.Fatal(err)
		}
	})
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
	relay.Wait()
	// Output:
	// mail about order-1: paid
}

func migrate(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id text PRIMARY KEY, state text); INSERT INTO orders VALUES ('order-1', 'new')"); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, sqloutbox.Schema(sqloutbox.SQLite))
	return err
}

func pay(ctx context.Context, db *sql.DB, order string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
	if _, err := tx.ExecContext(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", order); err != nil {
		return err
	}
	if err := sqloutbox.Add(ctx, tx, "mails", lowkiq.Push{ID: order, Payload: []byte(`"paid"`)}); err != nil {
		return err
	}
	return tx.Commit()
}
