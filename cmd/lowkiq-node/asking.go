package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"os"
	"strings"
	"unicode"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/cmd/internal/exit"
	"github.com/lowkiq/lowkiq/cmd/internal/signals"
	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/internal/network/certs"
	"github.com/lowkiq/lowkiq/internal/network/remote"
)

// nodeFlags are the flags of commands that ask a node.
type nodeFlags struct {
	Node        string `env:"LOWKIQ_URL" default:"http://127.0.0.1:7948" placeholder:"URL" help:"Address of any node of the cluster (${default})."`
	credentials `embed:""`
	Output      string `short:"o" enum:"table,json" default:"table" help:"table or json."`
}

// credentials are the token and the certificates for requests to a node.
type credentials struct {
	TokenFile string `env:"LOWKIQ_TOKEN_FILE" placeholder:"FILE" help:"File with the token that the node asks for. LOWKIQ_TOKEN is the token itself."`
	trust     `embed:""`
}

// trust names the files of the certificates that authenticate command and node to each other.
type trust struct {
	CA   string `name:"ca" env:"LOWKIQ_CA" placeholder:"FILE" help:"File with the certificates of the authorities that the command trusts, for https. Default: the system's."`
	Cert string `env:"LOWKIQ_CERT" placeholder:"FILE" help:"File with the certificate to show to the node."`
	Key  string `env:"LOWKIQ_KEY" placeholder:"FILE" help:"File with the key of --cert."`
}

// session is a command's exchange with a node.
type session struct {
	*remote.Client
	*terminal.Streams
	ctx    context.Context
	stop   func()
	asJSON bool
}

// openSession prepares the session that Run of a command gets.
func (a *nodeFlags) openSession(s *terminal.Streams) (*session, error) {
	with, err := a.credentials.openSession(a.Node, s)
	if err != nil {
		return nil, err
	}
	with.ctx, with.stop = signals.UntilInterrupted()
	with.asJSON = a.Output == "json"
	return with, nil
}

// openSession prepares a session with a node. It sends nothing.
func (a *credentials) openSession(node string, s *terminal.Streams) (*session, error) {
	token, err := commandToken(a.TokenFile)
	if err != nil {
		return nil, exit.Fail(exit.Usage, "--token-file: %w", err)
	}
	client, err := remote.New(node, token)
	if err != nil {
		return nil, exit.WithCode(exit.Usage, err)
	}
	user := cmp.Or(os.Getenv("LOWKIQ_USER"), os.Getenv("USER"))
	if strings.ContainsFunc(user, unicode.IsControl) {
		return nil, exit.Fail(exit.Usage, "LOWKIQ_USER: %q has control characters; it must be a name", user)
	}
	client.SetUser(user)
	return &session{Client: client, Streams: s}, a.configureTLS(client)
}

// configureTLS sets the certificates that a client uses for https addresses.
func (t *trust) configureTLS(client *remote.Client) error {
	store, err := certs.Open(certs.Files{Cert: t.Cert, Key: t.Key, CA: t.CA}, nil)
	if err != nil {
		return exit.Fail(exit.Usage, "--ca, --cert, --key: %w", err)
	}
	client.SetTLS(store.ClientConfig())
	return nil
}

// getAndPrint requests a path and prints the answer: unchanged with -o json, otherwise as rows.
func (c *session) getAndPrint(path string, into any, rows func()) error {
	answer, err := c.Get(c.ctx, path)
	switch {
	case err != nil:
		return err
	case c.asJSON:
		return terminal.WriteJSON(c.Out, answer)
	}
	if err := decodeAnswer(path, answer, into); err != nil {
		return err
	}
	rows()
	return nil
}

// fetchJSON requests a path and decodes the answer.
func (c *session) fetchJSON(path string, into any) error {
	answer, err := c.Get(c.ctx, path)
	if err != nil {
		return err
	}
	return decodeAnswer(path, answer, into)
}

// printValue prints v: as JSON with -o json, otherwise as rows.
func (c *session) printValue(v any, rows func()) error {
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
	return terminal.WriteJSON(c.Out, text.Bytes())
}

// postChange posts a change and prints its result.
func (c *session) postChange(path string, body any, format string, args ...any) error {
	answer, err := c.Post(c.ctx, path, body)
	switch {
	case err != nil:
		return err
	case c.asJSON:
		return terminal.WriteJSON(c.Out, answer)
	}
	return c.Printf(format, args...)
}

// decodeAnswer decodes the answer to a path.
func decodeAnswer(path string, answer []byte, into any) error {
	if err := json.Unmarshal(answer, into); err != nil {
		return exit.Fail(exit.Failed, "%s: not the answer of a lowkiq node: %w", path, err)
	}
	return nil
}

// jobPath returns the API's path of a job, with below appended.
func jobPath(queue, id, below string) (string, error) {
	return queuePath(queue, "/jobs/"+escapeSegment(id)+below), checkID(id)
}

// checkID returns an error if an argument cannot be an id.
func checkID(id string) error {
	if id == "" || len(id) > lowkiq.MaxIDBytes {
		return exit.Fail(exit.Usage, "key %.60q has %d bytes; an id must have 1 to %d", id, len(id), lowkiq.MaxIDBytes)
	}
	return nil
}

// queuePath returns the API's path of a queue, with below appended.
func queuePath(queue string, below string) string {
	return "/api/v1/queues/" + escapeSegment(queue) + below
}
