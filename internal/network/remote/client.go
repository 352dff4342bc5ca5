package remote

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/auth"
)

// ErrUnreachable means that nothing answered at the node's address.
var ErrUnreachable = errors.New("node is unreachable")

// Client sends requests to a node.
type Client struct {
	base  string
	token string
	user  string
	http  *http.Client
}

// New validates the address, as in http://127.0.0.1:7948. It sends nothing.
func New(address, token string) (*Client, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("node address %q; it must be http://host:port or https://host:port", address)
	}
	if i := strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }); i >= 0 {
		return nil, fmt.Errorf("the token (--token-file or LOWKIQ_TOKEN) has %+q at byte %d of %d, which no header can carry: want the "+
			"token alone, without a space or a line break", firstRune(token[i:]), i+1, len(token))
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

func firstRune(text string) rune {
	r, _ := utf8.DecodeRuneInString(text)
	return r
}

// SetTLS sets the TLS configuration for https addresses. Call it before the first request.
func (c *Client) SetTLS(config *tls.Config) {
	c.http.Transport.(*http.Transport).TLSClientConfig = config
}

// ExtendTimeout lets requests take longer than a minute by the given time.
func (c *Client) ExtendTimeout(longer time.Duration) { c.http.Timeout = time.Minute + longer }

// Get requests a path, as in "/api/v1/status", and returns the body of the answer. A refusal of the
// node is a *web.Problem.
func (c *Client) Get(ctx context.Context, path string) ([]byte, error) {
	return c.readAnswer(ctx, http.MethodGet, path, "", nil)
}

// Stream requests a path that answers with server-sent events, and calls each for every event. It
// returns when the answer ends, when ctx ends, or with the error of each. It has no timeout.
func (c *Client) Stream(ctx context.Context, path string, each func(event string, data []byte) error) error {
	patient := *c
	client := *c.http
	client.Timeout = 0
	patient.http = &client
	resp, err := patient.sendRequest(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		answer, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return problemOf(resp.StatusCode, answer)
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

// maxEvent is the largest number of bytes in a line of an event. A change may have many ids.
const maxEvent = 4 << 20

// Post sends body as JSON. A nil body is empty.
func (c *Client) Post(ctx context.Context, path string, body any) ([]byte, error) {
	if body == nil {
		return c.readAnswer(ctx, http.MethodPost, path, "", nil)
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // JSON inside of body stays as it was given
	if err := e.Encode(body); err != nil {
		return nil, fmt.Errorf("post %s: %w", path, err)
	}
	return c.PostRaw(ctx, path, "application/json", text.Bytes())
}

// Patch sends a change of a resource with this revision, which goes into the If-Match header.
func (c *Client) Patch(ctx context.Context, path, revision string, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("patch %s: %w", path, err)
	}
	return c.readAnswer(ctx, http.MethodPatch, path, "application/json", text, "If-Match", revision)
}

// Put stores body as it is under a path.
func (c *Client) Put(ctx context.Context, path, contentType string, body []byte) ([]byte, error) {
	return c.readAnswer(ctx, http.MethodPut, path, contentType, body)
}

// Delete deletes a resource.
func (c *Client) Delete(ctx context.Context, path string) ([]byte, error) {
	return c.readAnswer(ctx, http.MethodDelete, path, "", nil)
}

// SetUser sets the name of the user. Nodes record it beside the changes that the user makes.
func (c *Client) SetUser(name string) { c.user = name }

// PostRaw sends body as it is.
func (c *Client) PostRaw(ctx context.Context, path, contentType string, body []byte) ([]byte, error) {
	return c.readAnswer(ctx, http.MethodPost, path, contentType, body)
}

// readAnswer sends a request and returns the body of the answer.
func (c *Client) readAnswer(ctx context.Context, method, path, contentType string, body []byte, headers ...string) ([]byte, error) {
	resp, err := c.sendRequest(ctx, method, path, contentType, body, headers...)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: read the answer of %s: %w", ErrUnreachable, c.base, err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, problemOf(resp.StatusCode, answer)
	}
	return answer, nil
}

// sendRequest sends a request and returns the answer. The caller must close its body.
func (c *Client) sendRequest(ctx context.Context, method, path, contentType string, body []byte, headers ...string) (*http.Response, error) {
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
		return nil, fmt.Errorf("%w: %w%s", ErrUnreachable, err, adviceFor(err))
	}
	return resp, nil
}

// adviceFor returns a hint about a wrong address or a missing authority, "" if it knows none.
func adviceFor(err error) string {
	var stranger x509.UnknownAuthorityError
	var other x509.HostnameError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &stranger):
		return "; the authority of its certificate is not trusted: --ca FILE or LOWKIQ_CA names it"
	case errors.As(err, &other):
		return "; its certificate is for other names: want one of them in the address"
	case errors.As(err, &plain), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "; it does not speak TLS: want http:// in the address"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), strings.Contains(err.Error(), "malformed HTTP"):
		return "; the address must be that of a node's API (node.http), and begin with https:// if it speaks TLS"
	}
	return ""
}

// problemOf reads a refusal. An answer in another form does not come from a node.
func problemOf(status int, body []byte) error {
	e := &web.Problem{}
	if json.Unmarshal(body, e) != nil || e.Title == "" {
		if bytes.HasPrefix(body, []byte("Client sent an HTTP request to an HTTPS server")) {
			return &web.Problem{Status: status, Detail: "it speaks TLS only: want https:// in the address"}
		}
		return &web.Problem{Status: status, Detail: fmt.Sprintf("answered %d %s: is this a lowkiq node?", status, http.StatusText(status))}
	}
	e.Status = status
	return e
}
