//go:build linux

package browser

import (
	_ "embed"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

//go:embed axe.js
var axe string

// objection is what axe.js says of a page.
type objection struct{ Rule, Where, What string }

func (o objection) String() string { return fmt.Sprintf("%s: %s %s", o.Rule, o.Where, o.What) }

// objections looks at the page that a tab shows.
func (b *tab) objections() []objection {
	b.t.Helper()
	return eval[[]objection](b, axe)
}

// focusMark describes how the focused element looks, and whether that is more than without
// the focus: an outline, or another shadow or border.
const focusMark = `(() => {
  const e = document.activeElement;
  if (!e || e === document.body) return "";
  const style = (x) => { const s = getComputedStyle(x); return [s.boxShadow, s.borderColor, s.backgroundColor, s.textDecorationLine].join("|"); };
  const s = getComputedStyle(e);
  const outlined = s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 1 && s.outlineColor !== "rgba(0, 0, 0, 0)";
  const focused = style(e);
  const name = e.tagName.toLowerCase() + " " + (e.textContent || e.name || "").trim().slice(0, 30);
  const box = e.getBoundingClientRect();
  const hidden = box.width <= 1 || box.height <= 1;
  if (outlined && !hidden) return "ok " + name;
  e.blur();
  const marked = style(e) !== focused;
  e.focus();
  return (marked && !hidden ? "ok " : "bad ") + name;
})()`

// tabThrough presses the tab key a number of times and returns the elements that did not
// show their focus, and how many elements had it.
func (b *tab) tabThrough(presses int) (unmarked []string, reached int) {
	b.t.Helper()
	for range presses {
		b.do(chromedp.KeyEvent(kb.Tab))
		verdict, name, _ := strings.Cut(eval[string](b, focusMark), " ")
		switch verdict {
		case "":
			return unmarked, reached // back at the window
		case "bad":
			unmarked = append(unmarked, name)
		}
		reached++
	}
	return unmarked, reached
}

// frame is a page without fault around a text.
const frame = `<!doctype html><html lang="en"><head><title>t</title><meta name="viewport" content="width=device-width">
<style>body{font:16px/1.5 sans-serif;color:#222;background:#fff}</style></head><body><main><h1>One</h1>%s</main></body></html>`

// badPages break one rule each.
var badPages = []struct{ rule, body string }{
	{"", `<p>Nothing is wrong <a href="/">here</a>.</p><button>Do it</button><label>Name <input></label>`},
	{"one-h1", `<h1>Two</h1>`},
	{"heading-order", `<h3>Three</h3>`},
	{"heading-empty", `<h2></h2>`},
	{"landmark", `</main><p>outside</p><main hidden>`},
	{"unique-id", `<p id="a">a</p><p id="a">b</p>`},
	{"reference", `<p aria-describedby="nobody">a</p>`},
	{"tabindex", `<p tabindex="3">a</p>`},
	{"list", `<ul><p>a</p></ul>`},
	{"name", `<input>`},
	{"name", `<button></button>`},
	{"name", `<a href="/"><svg aria-hidden="true" width="30" height="30"></svg></a>`},
	{"name", `<div role="region">a</div>`},
	{"alt", `<img src="data:,">`},
	{"alt", `<svg width="10" height="10"></svg>`},
	{"table", `<table><tr><th scope="col">a</th></tr></table>`},
	{"table", `<table><caption>c</caption><tr><td>a</td></tr></table>`},
	{"table", `<table><caption>c</caption><tr><th>a</th></tr></table>`},
	{"table", `<table><caption>c</caption><tr><th scope="col">a</th><th scope="col">b</th></tr><tr><td>1</td></tr></table>`},
	{"contrast", `<p style="color:#999">pale</p>`},
	{"contrast", `<p style="opacity:.4">faded</p>`},
	{"contrast", `<div style="background:#000"><p style="background:rgba(255,255,255,.1);color:#555">deep</p></div>`},
	{"contrast", `<label>a <input placeholder="pale" style="color:#000;background:#ddd"></label>`},
	{"contrast", `<svg role="img" aria-label="x" width="90" height="30"><text y="20" fill="#bbb">pale</text></svg>`},
	{"target", `<button style="width:12px;height:12px;padding:0;font-size:8px">x</button><button style="width:12px;height:12px;padding:0;font-size:8px">y</button>`},
	{"overflow", `<div style="width:900px">wide</div>`},
	{"overflow", `<div style="overflow:auto" tabindex="0"><div style="width:900px;text-align:right"><span style="position:absolute;width:1px;height:1px;overflow:hidden">put away</span></div></div>`},
	{"scroll", `<div style="overflow:auto;width:100px"><div style="width:300px">wide</div></div>`},
}

// TestAxeObjects checks that axe.js finds each fault, and nothing else.
func TestAxeObjects(t *testing.T) {
	t.Parallel()
	b := newTab(t, chromium(t), look{360, "light"})
	body := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		if r.URL.Path != "/" {
			w.WriteHeader(http.StatusNoContent)
		} else if strings.HasPrefix(body, "<!") {
			fmt.Fprint(w, body)
		} else {
			fmt.Fprintf(w, frame, body)
		}
	}))
	defer server.Close()
	look := func(rule, page string) {
		t.Helper()
		body = page
		b.open(server.URL)
		var rules []string
		list := b.objections()
		for _, o := range list {
			rules = append(rules, o.Rule)
		}
		slices.Sort(rules)
		if got := strings.Join(slices.Compact(rules), " "); got != rule {
			t.Errorf("%s: got %v, want %q", page, list, rule)
		}
	}
	for _, bad := range badPages {
		look(bad.rule, bad.body)
	}
	look("lang title viewport", `<!doctype html><html><body><main><h1>One</h1></main></body></html>`)

	body = `<style>:focus{outline:none}</style><a href="/">one</a> <button>two</button>`
	b.open(server.URL)
	if unmarked, reached := b.tabThrough(5); len(unmarked) != 2 || reached != 2 {
		t.Errorf("focus that does not show: got %q of %d, want two of two", unmarked, reached)
	}
	body = `<a href="/">one</a> <button>two</button>`
	b.open(server.URL)
	if unmarked, reached := b.tabThrough(5); len(unmarked) != 0 || reached != 2 {
		t.Errorf("focus that shows: got %q of %d, want none of two", unmarked, reached)
	}
}

// TestFaultsAreSeen checks that the browser tests find a fault in a page.
func TestFaultsAreSeen(t *testing.T) {
	t.Parallel()
	b := newTab(t, chromium(t), look{1440, "light"})
	body := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'self'; script-src 'self' 'nonce-x'; img-src 'self' data:")
		fmt.Fprintf(w, frame, body)
	}))
	defer server.Close()
	b.allow(server.URL + "/favicon.ico")
	for _, c := range []struct{ name, body, want string }{
		{"exception", `<script nonce="x">throw new Error("thrown")</script>`, "thrown"},
		{"console", `<script nonce="x">console.error("said")</script>`, "said"},
		{"inline script", `<script>1</script>`, "policy"},
		{"inline handler", `<button onclick="x()">a</button>`, "policy"},
		{"inline style", `<p style="color:red">a</p>`, "policy"},
		{"missing", `<img alt="" src="/missing.png">`, "404"},
	} {
		body = c.body
		b.open(server.URL)
		var faults []string
		await(t, c.name, patience, func() bool {
			faults = append(faults, b.wrong()...)
			return strings.Contains(strings.Join(faults, "\n"), c.want)
		})
	}
}
