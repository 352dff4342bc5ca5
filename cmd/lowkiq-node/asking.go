package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/url"
	"os"
	"strings"
	"unicode"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/certs"
	"github.com/lowkiq/lowkiq/internal/remote"
)

// asking are the flags of commands that ask a node.
type asking struct {
	Node        string `env:"LOWKIQ_URL" default:"http://127.0.0.1:7948" placeholder:"URL" help:"Address of any node of the cluster (${default})."`
	credentials `embed:""`
	Output      string `short:"o" enum:"table,json" default:"table" help:"table or json."`
}

// credentials are what a node is shown, and by what it is known.
type credentials struct {
	TokenFile string `env:"LOWKIQ_TOKEN_FILE" placeholder:"FILE" help:"File with the token that the node asks for. LOWKIQ_TOKEN is the token itself."`
	trust     `embed:""`
}

// trust is by what a node knows its caller, and is known.
type trust struct {
	CA   string `name:"ca" env:"LOWKIQ_CA" placeholder:"FILE" help:"File with the certificates of who vouches for the node, for https. Default: the system's."`
	Cert string `env:"LOWKIQ_CERT" placeholder:"FILE" help:"File with the certificate to show to the node."`
	Key  string `env:"LOWKIQ_KEY" placeholder:"FILE" help:"File with the key of --cert."`
}

// conversation is one command's talk with a node.
type conversation struct {
	*remote.Client
	*streams
	ctx    context.Context
	stop   func()
	asJSON bool
}

// ask prepares the conversation that the Run of a command gets.
func (a *asking) ask(s *streams) (*conversation, error) {
	with, err := a.credentials.ask(a.Node, s)
	if err != nil {
		return nil, err
	}
	with.ctx, with.stop = untilInterrupted()
	with.asJSON = a.Output == "json"
	return with, nil
}

// ask prepares to talk with a node. Nothing is sent.
func (a *credentials) ask(node string, s *streams) (*conversation, error) {
	token, err := commandToken(a.TokenFile)
	if err != nil {
		return nil, fail(exitUsage, "--token-file: %w", err)
	}
	client, err := remote.New(node, token)
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	user := cmp.Or(os.Getenv("LOWKIQ_USER"), os.Getenv("USER"))
	if strings.ContainsFunc(user, unicode.IsControl) {
		return nil, fail(exitUsage, "LOWKIQ_USER: %q has control characters, want a name", user)
	}
	client.SetUser(user)
	return &conversation{Client: client, streams: s}, a.secure(client)
}

// secure makes a client speak to https addresses by the flags.
func (t *trust) secure(client *remote.Client) error {
	store, err := certs.Open(certs.Files{Cert: t.Cert, Key: t.Key, CA: t.CA}, nil)
	if err != nil {
		return fail(exitUsage, "--ca, --cert, --key: %w", err)
	}
	client.Secure(store.Client())
	return nil
}

// show gets a path and prints it: as it came with -o json, else as rows.
func (c *conversation) show(path string, into any, rows func()) error {
	answer, err := c.Get(c.ctx, path)
	switch {
	case err != nil:
		return err
	case c.asJSON:
		return writeJSON(c.out, answer)
	}
	if err := decode(path, answer, into); err != nil {
		return err
	}
	rows()
	return nil
}

// fetch gets a path and reads the answer.
func (c *conversation) fetch(path string, into any) error {
	answer, err := c.Get(c.ctx, path)
	if err != nil {
		return err
	}
	return decode(path, answer, into)
}

// print prints v as JSON with -o json, else as rows.
func (c *conversation) print(v any, rows func()) error {
	if !c.asJSON {
		rows()
		return nil
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	return writeJSON(c.out, text.Bytes())
}

// change posts and says what is so now.
func (c *conversation) change(path string, body any, format string, args ...any) error {
	answer, err := c.Post(c.ctx, path, body)
	switch {
	case err != nil:
		return err
	case c.asJSON:
		return writeJSON(c.out, answer)
	}
	return c.say(format, args...)
}

// decode reads the answer to a path.
func decode(path string, answer []byte, into any) error {
	if err := json.Unmarshal(answer, into); err != nil {
		return fail(exitFailed, "%s: not what a lowkiq node answers: %w", path, err)
	}
	return nil
}

// jobPath is the API's path below a job.
func jobPath(queue, id, below string) (string, error) {
	return queuePath(queue, "/jobs/"+segment(id)+below), checkID(id)
}

// checkID refuses what is no id: not all that is written on a command line is one.
func checkID(id string) error {
	if id == "" || len(id) > lowkiq.MaxIDBytes {
		return fail(exitUsage, "key %.60q has %d bytes, want an id of 1 to %d", id, len(id), lowkiq.MaxIDBytes)
	}
	return nil
}

// queuePath is the API's path of a queue, and below it.
func queuePath(queue string, below string) string {
	return "/api/v1/queues/" + url.PathEscape(queue) + below
}
