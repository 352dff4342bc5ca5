package remote

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/lowkiq/lowkiq/internal/testing/leaktest"
	"github.com/lowkiq/lowkiq/web"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   string
		code   int
	}{
		{"ok", 200, `{"a":1}`, "", 0},
		{"problem", 404, `{"title":"Not Found","status":404,"detail":"unknown queue \"x\""}`, `unknown queue "x"`, 404},
		{"partly done", 503, `{"title":"Service Unavailable","status":503,"detail":"redis is away","changed":3}`, "redis is away (3 were changed before)", 503},
		{"no detail", 401, `{"title":"Unauthorized","status":401}`, "Unauthorized", 401},
		{"somebody else", 404, "<html>", "answered 404 Not Found: is this a lowkiq node?", 404},
		{"redirect to a login page", 302, "", "answered 302 Found: is this a lowkiq node?", 302},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("Authorization"); got != "Bearer s3cret" {
					t.Errorf("authorization: got %q, want Bearer s3cret", got)
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			}))
			defer srv.Close()
			client, err := New(srv.URL+"/", "s3cret")
			if err != nil {
				t.Fatal(err)
			}
			got, err := client.Post(t.Context(), "/x", map[string]any{"all": true})
			var answer *web.Problem
			switch {
			case c.want == "" && (err != nil || string(got) != c.body):
				t.Errorf("got %q %v, want %q", got, err, c.body)
			case c.want != "" && (!errors.As(err, &answer) || answer.Error() != c.want || answer.Status != c.code):
				t.Errorf("got %v, want %q with status %d", err, c.want, c.code)
			}
		})
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	status := 200
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, ": listening\n\nevent: run\ndata: 1\ndata: 2\n\nevent: change\ndata: 3\n\ndata: not whole")
	}))
	defer srv.Close()
	client, err := New(srv.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	each := func(event string, data []byte) error { got = append(got, event+" "+string(data)); return nil }
	if err := client.Stream(t.Context(), "/x", each); err != nil || !slices.Equal(got, []string{"run 1\n2", "change 3"}) {
		t.Errorf("got %q, %v; want two events", got, err)
	}
	if err := client.Stream(t.Context(), "/x", func(string, []byte) error { return io.EOF }); err != io.EOF {
		t.Errorf("got %v, want what the function says", err)
	}
	status = 503
	var refused *web.Problem
	if err := client.Stream(t.Context(), "/x", each); !errors.As(err, &refused) || refused.Status != 503 {
		t.Errorf("got %v, want a refusal", err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	client, err := New("127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Get(t.Context(), "/x"); !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want ErrUnreachable", err)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	for address, ok := range map[string]bool{
		"http://127.0.0.1:7948": true, "https://h": true, "h:1": true, "ftp://h": false, "": false, "http://": false, "http://%": false,
	} {
		if _, err := New(address, ""); (err == nil) != ok {
			t.Errorf("%q: got %v, want ok: %t", address, err, ok)
		}
	}
}
