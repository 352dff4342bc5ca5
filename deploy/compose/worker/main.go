package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/sample"
	"github.com/lowkiq/lowkiq/internal/history"
)

// sampleWorkerCommand is the HTTP endpoint of the sample deployment (deploy/compose).
type sampleWorkerCommand struct {
	HTTP    string        `name:"http" default:"127.0.0.1:9000"`
	Work    time.Duration `default:"5ms"`
	History string        ``
}

// Run serves until SIGTERM or SIGINT.
func (c *sampleWorkerCommand) Run(*streams) error {
	endpoint := &sample.Endpoint{Work: c.Work}
	if c.History != "" {
		host, err := os.Hostname()
		if err != nil {
			return fail(exitFailed, "sample-worker: %w", err)
		}
		if endpoint.History, err = history.OpenAs(c.History, host); err != nil {
			return fail(exitUsage, "sample-worker: %w", err)
		}
		defer endpoint.History.Close()
	}
	listener, err := net.Listen("tcp", c.HTTP)
	if err != nil {
		return fail(exitUsage, "sample-worker: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := &http.Server{Handler: endpoint, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fail(exitFailed, "sample-worker: %w", err)
	case <-ctx.Done():
	}
	if err := server.Shutdown(context.Background()); err != nil {
		return fail(exitFailed, "sample-worker: %w", err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fail(exitFailed, "sample-worker: %w", err)
	}
	return nil
}
