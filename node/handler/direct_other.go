//go:build !unix

package handler

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/lowkiq/lowkiq"
)

// direct is for Unix: elsewhere nothing tells whether an idle connection has an other end.
type direct struct{}

var errLarge = errors.New("no direct connections here")

const maxIdle = 1024

func newDirect(*url.URL, *HTTPConfig) *direct { return nil }

func (*direct) close() {}

func (*direct) post(context.Context, *lowkiq.Batch) (*http.Response, []byte, bool, error) {
	return nil, nil, false, errLarge
}
