// Command worker is the service of the sample deployment (compose.yml): an HTTP endpoint for the
// batches of any queue, where a user's own service would stand. It works for a moment on each batch,
// and may write a history for the judge (package judge).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq/lab/judge"
)

func main() {
	listen := flag.String("http", "127.0.0.1:9000", "`address` to listen at")
	work := flag.Duration("work", 5*time.Millisecond, "how long it works on a batch")
	file := flag.String("history", "", "`file` for the history")
	flag.Parse()
	if err := serve(*listen, *work, *file); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

// serve serves until SIGTERM, SIGINT or SIGHUP.
func serve(listen string, work time.Duration, file string) error {
	handler := &endpoint{work: work}
	if file != "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		if handler.history, err = judge.OpenAs(file, host); err != nil {
			return err
		}
		defer handler.history.Close()
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	if err := server.Shutdown(context.Background()); err != nil {
		return err
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
