package dashboard

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/lowkiq/lowkiq/queue/browse"
)

func TestSearchOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]browse.Search{
		"":                              {},
		"  ":                            {},
		"acme":                          {Contains: "acme"},
		" two  words ":                  {Contains: "two words"},
		`"two  words"`:                  {Contains: "two  words"},
		"tag:vip":                       {Tag: "vip"},
		`acme tag:vip error:"no stock"`: {Contains: "acme", Tag: "vip", Error: "no stock"},
		`"tag:vip"`:                     {Contains: "tag:vip"},
		"acme:7":                        {Contains: "acme:7"},
		`{"n":1}`:                       {Contains: `{"n":1}`},
		`"{" a"b`:                       {Contains: `{ a"b`},
		`error:`:                        {},
		`a "`:                           {Contains: "a "},
		`a "b c`:                        {Contains: "a b c"},
	} {
		if got := searchOf(text); got != want {
			t.Errorf("%s: got %+v, want %+v", text, got, want)
		}
	}
}

// The box finds jobs by what they say, keeps what is asked for, and says what is wrong beside itself.
func TestSearchBox(t *testing.T) {
	t.Parallel()
	w := newWorld(t).fill()
	search := func(list, text string) *httptest.ResponseRecorder {
		return w.get("/queues/orders/" + list + "?by=&state=&q=" + url.QueryEscape(text))
	}
	expect(t, search("jobs", "a/b"), 200, `value="a/b"`, "looked through 100 %", ">a/b<")
	if body := search("jobs", "a/b").Body.String(); strings.Contains(body, ">r1<") {
		t.Errorf("got %s, want what was asked for", body)
	}
	expect(t, search("jobs", `error:"no stock"`), 200, ">f1<")
	expect(t, search("morgue", `error:stock`), 200, ">d1<", ">d3<")
	expect(t, search("jobs", "nowhere"), 200, "No job says so", "looked through 100 %")
	expect(t, search("jobs", strings.Repeat("x", browse.MaxSearch+1)), 200, "201 bytes: want at most 200", `role="alert"`)
	expect(t, search("jobs", `"><script>alert(1)`), 200, "1 job on this page", "&lt;script&gt;alert(1)")
	expect(t, w.get("/queues/orders/jobs?by=id&limit=25&q=n"), 200, "looked through")
}
