package web

import (
	_ "embed" // the description
	"net/http"
)

// openapiText describes the API for programs. A test holds it against the routes and
// their answers.
//
//go:embed openapi.yaml
var openapiText []byte

func (a *api) openapi(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openapiText)
	return nil
}
