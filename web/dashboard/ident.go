package dashboard

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
)

// Ids are bytes of any value. Forms cannot carry all of them (browsers rewrite line ends
// and what is not UTF-8), so forms and some links name an id by a key: its base64.

// keyOf is the key of an id.
func keyOf(id string) string { return base64.RawURLEncoding.EncodeToString([]byte(id)) }

func idOf(key string) (string, error) {
	id, err := base64.RawURLEncoding.DecodeString(key)
	if err != nil || len(id) == 0 || len(id) > lowkiq.MaxIDBytes {
		return "", refuse(http.StatusBadRequest, "%.40q names no id: want its base64 (URL alphabet, without padding).", key)
	}
	return string(id), nil
}

// plain reports whether an id can be shown and typed as it is.
func plain(id string) bool {
	return utf8.ValidString(id) && strings.TrimSpace(id) == id && strings.IndexFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// showID is an id as people may read it.
func showID(id string) string {
	if plain(id) {
		return id
	}
	return strconv.Quote(id)
}

// jobLink is where an id's page is.
func jobLink(queue, id string) string {
	if plain(id) {
		return "/queues/" + url.PathEscape(queue) + "/job?id=" + url.QueryEscape(id)
	}
	return "/queues/" + url.PathEscape(queue) + "/job?key=" + keyOf(id)
}
