package remote

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/web"
)

// Each wrong address, and what is not trusted, is named with what would be right.
func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	plain, secure := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that the clients below break off
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	authority := x509.NewCertPool()
	authority.AddCert(secure.Certificate())
	for _, c := range []struct {
		name, address string
		trust         *tls.Config
		want          string
		answered      bool // by a node, if not by one that was meant
	}{
		{"http to an https port", strings.Replace(secure.URL, "https:", "http:", 1), nil, "it speaks TLS only: want https:// in the address", true},
		{"https to an http port", strings.Replace(plain.URL, "http:", "https:", 1), nil, "it does not speak TLS: want http:// in the address", false},
		{"unknown authority", secure.URL, nil, "the authority of its certificate is not trusted: --ca FILE or LOWKIQ_CA names it", false},
		{"another name", secure.URL, &tls.Config{RootCAs: authority, ServerName: "other.invalid"}, "its certificate is for other names: want one of them in the address", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, err := New(c.address, "s3cret")
			if err != nil {
				t.Fatal(err)
			}
			client.SetTLS(c.trust)
			_, err = client.Get(t.Context(), "/x")
			var answer *web.Problem
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &answer) != c.answered {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A token that no header can carry is refused before anything is sent, and not shown.
func TestUnfitTokens(t *testing.T) {
	t.Parallel()
	for token, want := range map[string]string{
		"s3cret\n": `has '\n' at byte 7 of 7`, "s3cret s3cret": `has ' ' at byte 7 of 13`, "s3crät": `has '\u00e4' at byte 5 of 7`,
	} {
		_, err := New("http://127.0.0.1:1", token)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "LOWKIQ_TOKEN") || strings.Contains(err.Error(), "s3c") {
			t.Errorf("%q: got %v, want %q", token, err, want)
		}
	}
}
