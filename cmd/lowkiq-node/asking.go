package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/remote"
	"github.com/lowkiq/lowkiq/internal/certs"
)

// asking are the flags of commands that ask a node.
type asking struct {
	Node      string `env:"LOWKIQ_URL" default:"http://127.0.0.1:7948" placeholder:"URL" help:"Address of any node of the cluster (${default})."`
	TokenFile string `env:"LOWKIQ_TOKEN_FILE" placeholder:"FILE" help:"File with the token that the node asks for. LOWKIQ_TOKEN is the token itself."`
	CA        string `name:"ca" env:"LOWKIQ_CA" placeholder:"FILE" help:"File with the certificates of who vouches for the node, for https. Default: the system's."`
	Cert      string `env:"LOWKIQ_CERT" placeholder:"FILE" help:"File with the certificate to show to the node."`
	Key       string `env:"LOWKIQ_KEY" placeholder:"FILE" help:"File with the key of --cert."`
	Output    string `short:"o" enum:"table,json" default:"table" help:"table or json."`
}

// conversation is one command's talk with a node.
type conversation struct {
	*remote.Client
	ctx    context.Context
	stop   func()
	out    *streams
	asJSON bool
}

func (a *asking) ask(s *streams) (*conversation, error) {
	token, err := commandToken(a.TokenFile)
	if err != nil {
		return nil, fail(exitUsage, "--token-file: %w", err)
	}
	client, err := remote.New(a.Node, token)
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	trust, err := certs.Open(certs.Files{Cert: a.Cert, Key: a.Key, CA: a.CA}, nil)
	if err != nil {
		return nil, fail(exitUsage, "--ca, --cert, --key: %w", err)
	}
	client.Secure(trust.Client())
	ctx, stop := untilInterrupted()
	return &conversation{client, ctx, stop, s, a.Output == "json"}, nil
}

// show gets a path and prints it: as it came with -o json, else as rows.
func (c *conversation) show(path string, into any, rows func(io.Writer)) error {
	answer, err := c.Get(c.ctx, path)
	if err != nil {
		return err
	}
	if c.asJSON {
		_, err := c.out.out.Write(answer)
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fail(exitFailed, "%s: not what a lowkiq node answers: %w", path, err)
	}
	rows(c.out.out)
	return nil
}

// change posts and prints what the node says.
func (c *conversation) change(path string, body any, words func(answer map[string]any) string) error {
	answer, err := c.Post(c.ctx, path, body)
	if err != nil {
		return err
	}
	if c.asJSON {
		_, err := c.out.out.Write(answer)
		return err
	}
	var said map[string]any
	if err := json.Unmarshal(answer, &said); err != nil {
		return fail(exitFailed, "%s: not what a lowkiq node answers: %w", path, err)
	}
	_, err = fmt.Fprintln(c.out.out, words(said))
	return err
}

// table prints rows in columns below a header; see streams.table.
func (c *conversation) table(w io.Writer, header string, rows func(row func(format string, args ...any))) {
	c.out.table(w, header, rows)
}

// queuePath is the API's path of a queue, and below it.
func queuePath(queue string, below string) string {
	return "/api/v1/queues/" + url.PathEscape(queue) + below
}
