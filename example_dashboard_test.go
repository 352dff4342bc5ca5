package lowkiq_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/dashboard"
)

// The dashboard and the API of a node below /jobs/, on the mux of a program that serves other
// things too. Who may see them is up to the program here; web.Config.Tokens would ask for a token.
func Example_dashboard() {
	n, err := node.New(node.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "dashboard", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	err = n.Handle(node.QueueConfig{Name: "orders", Shards: 4}, lowkiq.HandlerFunc(
		func(context.Context, *lowkiq.Batch) error { return nil }))
	if err != nil {
		log.Fatal(err)
	}
	jobs, err := web.New(n, web.Config{Pages: dashboard.New}) // before Run: its figures are read while n runs
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/jobs/", jobs)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the program's own page") })

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()
	server := httptest.NewServer(mux) // or http.Server
	defer server.Close()
	for n.Ready() != nil {
		select {
		case err := <-ended:
			log.Fatal(err)
		default:
		}
	}
	fmt.Println("/:", page(server.URL+"/"))
	overview := page(server.URL + "/jobs/")
	for strings.Contains(overview, "Figures are still being read") { // at the start, on a machine that is busy
		overview = page(server.URL + "/jobs/")
	}
	fmt.Println("/jobs/ shows the queue:", strings.Contains(overview, `href="./queues/orders"`))
	fmt.Println("/jobs/readyz:", page(server.URL+"/jobs/readyz"))

	stop()
	fmt.Println("drained, error:", <-ended)
	// Output:
	// /: the program's own page
	// /jobs/ shows the queue: true
	// /jobs/readyz: ok
	// drained, error: <nil>
}

// page is what a browser gets.
func page(url string) string {
	answer, err := http.Get(url)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}
