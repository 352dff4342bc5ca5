package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"text/tabwriter"

	"github.com/lowkiq/lowkiq/cmd/lowkiq-node/internal/remote"
)

// asking are the flags of commands that ask a node.
type asking struct {
	Node      string `env:"LOWKIQ_URL" default:"http://127.0.0.1:7948" placeholder:"URL" help:"Address of any node of the cluster (${default})."`
	TokenFile string `env:"LOWKIQ_TOKEN_FILE" placeholder:"FILE" help:"File with the token that the node asks for. LOWKIQ_TOKEN is the token itself."`
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
	token := os.Getenv("LOWKIQ_TOKEN")
	if a.TokenFile != "" {
		var err error
		if token, err = readToken(a.TokenFile); err != nil {
			return nil, fail(exitUsage, "--token-file: %w", err)
		}
	}
	client, err := remote.New(a.Node, token)
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
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

// table prints rows in columns below a header.
func (c *conversation) table(w io.Writer, header string, rows func(row func(format string, args ...any))) {
	var text bytes.Buffer
	tw := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, strings.ReplaceAll(header, " ", "\t"))
	rows(func(format string, args ...any) { fmt.Fprintf(tw, format+"\n", args...) })
	tw.Flush() //nolint:errcheck // a buffer
	first, rest, _ := strings.Cut(text.String(), "\n")
	fmt.Fprint(w, c.out.bold(w, first)+"\n"+rest)
}

// queuePath is the API's path of a queue, and below it.
func queuePath(queue string, below string) string {
	return "/api/v1/queues/" + url.PathEscape(queue) + below
}
