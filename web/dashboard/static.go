package dashboard

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
)

//go:embed static/*
var staticFiles embed.FS

// assetsVersion names the files below /static/, so that a browser keeps them until they change.
func assetsVersion() string {
	sum := sha256.New()
	for _, name := range []string{"style.css", "live.js", "icon.svg"} {
		text, _ := staticFiles.ReadFile("static/" + name) // embedded: it is there
		sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12]
}

func (d *Dashboard) static(w http.ResponseWriter, r *http.Request) {
	types := map[string]string{"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}
	name := r.PathValue("file")
	text, err := staticFiles.ReadFile("static/" + name)
	if err != nil || types[name] == "" {
		d.page(d.nowhere)(w, r)
		return
	}
	keep := "no-cache"
	if r.URL.Query().Get("v") == d.assets {
		// Only then: a node of another version must not give its file a name that it has not.
		keep = "public, max-age=31536000, immutable"
	}
	w.Header().Set("Content-Type", types[name])
	w.Header().Set("Cache-Control", keep)
	_, _ = w.Write(text)
}
