//go:build !unix

package handler

import (
	"context"
	"errors"
	"time"

	"github.com/lowkiq/lowkiq"
)

var errNoUnix = errors.New("exec handlers need a Unix: process groups and pipes that pass to children")

// Guard does nothing here.
func Guard() {}

// Exec is a handler that needs a Unix.
type Exec struct{}

// NewExec returns an error, because exec handlers need a Unix.
func NewExec(ExecConfig) (*Exec, error) { return nil, errNoUnix }

// Run returns an error.
func (*Exec) Run(context.Context) error { return errNoUnix }

// Handle returns an error.
func (*Exec) Handle(context.Context, *lowkiq.Batch) error { return errNoUnix }

// Event returns an error.
func (*Exec) Event(context.Context, *lowkiq.Event) error { return errNoUnix }

// Ready returns an error.
func (*Exec) Ready() error { return errNoUnix }

// Grant does nothing.
func (*Exec) Grant(time.Duration) {}
