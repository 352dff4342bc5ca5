package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/process/sleep"
	"github.com/lowkiq/lowkiq/lab/judge"
	"github.com/lowkiq/lowkiq/wire"
)

// maxBatch bounds a request's body, bytes.
const maxBatch = 64 << 20

// endpoint is an HTTP handler for the batches of any queue.
type endpoint struct {
	work    time.Duration // how long it works on a batch
	history *judge.Writer // nil: none is written
}

// ServeHTTP answers {"ok":true} when the batch is done, 400 to what is no batch.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBatch))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	batch, err := wire.ParseBatch(text)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := e.handler().Handle(r.Context(), batch); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintln(w, `{"ok":true}`)
}

func (e *endpoint) handler() lowkiq.Handler {
	if e.history == nil {
		return lowkiq.HandlerFunc(e.pretend)
	}
	return judge.Wrap(e.history, lowkiq.HandlerFunc(e.pretend))
}

// pretend takes its time, and ends early when the node has given the request up.
func (e *endpoint) pretend(ctx context.Context, _ *lowkiq.Batch) error { return sleep.For(ctx, e.work) }
