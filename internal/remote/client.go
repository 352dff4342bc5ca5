package remote

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// ErrUnreachable: nothing answered at the node's address.
var ErrUnreachable = errors.New("node is unreachable")

// Client asks one node.
type Client struct {
	base  string
	token string
	user  string
	http  *http.Client
}

// New validates the address, as in http://127.0.0.1:7948. Nothing is sent.
func New(address, token string) (*Client, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("node address %q: want http://host:port", address)
	}
	return &Client{
		base: strings.TrimRight(address, "/"), token: token,
		http: &http.Client{
			Timeout:       time.Minute,
			Transport:     &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a node does not redirect
		},
	}, nil
}

// Secure makes the client speak to https addresses by this configuration. Call it
// before anything is sent.
func (c *Client) Secure(config *tls.Config) {
	c.http.Transport.(*http.Transport).TLSClientConfig = config
}

// Patience lets requests take so much longer than a minute.
func (c *Client) Patience(longer time.Duration) { c.http.Timeout = time.Minute + longer }

// Get asks for a path, as in "/api/v1/status", and returns the answer's body. A refusal of the node
// is a *web.Problem.
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
	return c.do(ctx, http.MethodGet, path, "", nil)
}

// Stream asks for a path that answers server-sent events, and passes on the data of each until the answer ends, ctx does,
// or each returns an error, which it returns. It takes as long as it lasts.
func (c *Client) Stream(ctx context.Context, path string, each func(event string, data []byte) error) error {
	patient := *c
	client := *c.http
	client.Timeout = 0
	patient.http = &client
	resp, err := patient.send(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return problem(resp.StatusCode, answer)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	var event string
	var data []byte
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "event":
			event = value
		case field == "data" && data == nil:
			data = []byte(value)
		case field == "data":
			data = append(append(data, '\n'), value...)
		case lines.Text() == "" && data != nil:
			if err := each(event, data); err != nil {
				return err
			}
			event, data = "", nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: read the events of %s: %w", ErrUnreachable, c.base, err)
	}
	return nil
}

// maxEvent is the longest line of an event, bytes: a change may have many ids.
const maxEvent = 4 << 20

// Post sends body as JSON, nil for none.
func (c *Client) Post(ctx context.Context, path string, body any) ([]byte, error) {
	if body == nil {
		return c.do(ctx, http.MethodPost, path, "", nil)
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // JSON that is a part of it stays as it was given
	if err := e.Encode(body); err != nil {
		return nil, fmt.Errorf("post %s: %w", path, err)
	}
	return c.PostRaw(ctx, path, "application/json", text.Bytes())
}

// Patch sends a change of what has this revision, as an If-Match header names it.
func (c *Client) Patch(ctx context.Context, path, revision string, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("patch %s: %w", path, err)
	}
	return c.do(ctx, http.MethodPatch, path, "application/json", text, "If-Match", revision)
}

// SetUser says who the user is, which nodes write down beside what he changes.
func (c *Client) SetUser(name string) { c.user = name }

// PostRaw sends body as it is.
func (c *Client) PostRaw(ctx context.Context, path, contentType string, body []byte) ([]byte, error) {
	return c.do(ctx, http.MethodPost, path, contentType, body)
}

func (c *Client) do(ctx context.Context, method, path, contentType string, body []byte, headers ...string) ([]byte, error) {
	resp, err := c.send(ctx, method, path, contentType, body, headers...)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: read the answer of %s: %w", ErrUnreachable, c.base, err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, problem(resp.StatusCode, answer)
	}
	return answer, nil
}

// send sends a request and returns the answer, whose body is to be closed.
func (c *Client) send(ctx context.Context, method, path, contentType string, body []byte, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", c.base, err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	if c.user != "" {
		req.Header.Set(auth.UserHeader, c.user)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return resp, nil
}

// problem reads a refusal; what answers something else is no node.
func problem(status int, body []byte) error {
	e := &web.Problem{}
	if json.Unmarshal(body, e) != nil || e.Title == "" {
		return &web.Problem{Status: status, Detail: fmt.Sprintf("answered %d %s: is this a lowkiq node?", status, http.StatusText(status))}
	}
	e.Status = status
	return e
}
