package dashboard

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// voids are elements without an end.
var voids = []string{"meta", "link", "base", "input", "br", "img", "hr"}

// checker reads a page and objects to what is not well-formed, what the content security
// policy would refuse, and what a screen reader could not make sense of.
type checker struct {
	found    []string
	open     []*element
	ids      map[string]bool
	wanted   []string // ids that are referred to
	seen     map[string]int
	headings []string
}

// element is one that has not ended.
type element struct {
	name  string
	attrs map[string]string
	text  strings.Builder
}

func objections(page string) []string {
	c := &checker{ids: map[string]bool{}, seen: map[string]int{}}
	if !strings.HasPrefix(page, "<!DOCTYPE html>") {
		c.object("no doctype")
	}
	tokens := html.NewTokenizer(strings.NewReader(page))
	for {
		kind := tokens.Next()
		token := tokens.Token()
		switch kind {
		case html.ErrorToken:
			c.end()
			return c.found
		case html.TextToken:
			c.say(token.Data)
		case html.StartTagToken, html.SelfClosingTagToken:
			c.start(token, kind == html.SelfClosingTagToken)
		case html.EndTagToken:
			c.close(token.Data)
		}
	}
}

func (c *checker) object(format string, args ...any) {
	c.found = append(c.found, fmt.Sprintf(format, args...))
}

// say adds text to all elements that are open.
func (c *checker) say(text string) {
	for _, e := range c.open {
		e.text.WriteString(text)
	}
}

func (c *checker) start(token html.Token, closed bool) {
	e := &element{name: token.Data, attrs: map[string]string{}}
	for _, a := range token.Attr {
		e.attrs[a.Key] = a.Val
	}
	c.seen[e.name]++
	c.attributes(e)
	c.control(e)
	if !closed && !slices.Contains(voids, e.name) {
		c.open = append(c.open, e)
	}
}

func (c *checker) attributes(e *element) {
	for name, value := range e.attrs {
		path, _, _ := strings.Cut(value, "?")
		switch {
		case name == "style", strings.HasPrefix(name, "on"):
			c.object("<%s> has %s, which the content security policy refuses", e.name, name)
		case name == "id" && c.ids[value]:
			c.object("id %q is there twice", value)
		case name == "id":
			c.ids[value] = true
		case name == "aria-labelledby", name == "aria-describedby", name == "list":
			c.wanted = append(c.wanted, value)
		case name == "tabindex" && value != "0" && value != "-1":
			c.object("<%s> has tabindex %s", e.name, value)
		case (name == "href" || name == "src" || name == "action") && !strings.HasPrefix(value, "http://127.") && // of a node
			(strings.Contains(path, "//") || !strings.HasPrefix(value, "./") && !strings.HasPrefix(value, "../")):
			c.object("<%s> leads elsewhere, or not below the prefix that the node is served at: %s", e.name, value)
		}
	}
}

// control checks elements that have no text of their own.
func (c *checker) control(e *element) {
	switch {
	case e.name == "style", e.name == "script" && e.attrs["src"] == "":
		c.object("<%s> inline", e.name)
	case e.name == "html" && e.attrs["lang"] == "":
		c.object("<html> has no lang")
	case e.name == "th" && e.attrs["scope"] == "":
		c.object("<th> has no scope")
	case e.attrs["role"] == "img" && e.attrs["aria-label"] == "":
		c.object("<%s role=img> has no aria-label", e.name)
	case e.name == "svg" && e.attrs["role"] == "" && e.attrs["aria-hidden"] == "":
		c.object("<svg> is neither an image nor hidden")
	case e.name == "input" && e.attrs["type"] != "hidden" || e.name == "select":
		labelled := slices.ContainsFunc(c.open, func(e *element) bool { return e.name == "label" })
		if !labelled && e.attrs["aria-label"] == "" {
			c.object("<%s name=%s> has no label", e.name, e.attrs["name"])
		}
	}
}

func (c *checker) close(name string) {
	if len(c.open) == 0 {
		c.object("</%s> closes nothing", name)
		return
	}
	e := c.open[len(c.open)-1]
	if e.name != name {
		c.object("</%s> closes <%s>", name, e.name)
		return
	}
	c.open = c.open[:len(c.open)-1]
	text := strings.TrimSpace(e.text.String())
	switch name {
	case "a", "button", "label", "caption", "th", "h1", "h2", "h3", "title", "dt", "dd":
		if text == "" && e.attrs["aria-label"] == "" {
			c.object("<%s> says nothing", name)
		}
	case "table":
		c.table(e)
	}
	if len(name) == 2 && name[0] == 'h' && name[1] >= '1' && name[1] <= '6' {
		c.headings = append(c.headings, name)
	}
}

func (c *checker) table(*element) {
	if c.seen["caption"] < c.seen["table"] {
		c.object("<table> has no caption")
	}
}

// end checks the page as a whole.
func (c *checker) end() {
	for _, e := range c.open {
		c.object("<%s> is not closed", e.name)
	}
	for _, name := range []string{"title", "main", "header", "footer", "nav", "h1"} {
		if c.seen[name] == 0 {
			c.object("no <%s>", name)
		}
	}
	for _, name := range []string{"main", "h1"} {
		if c.seen[name] > 1 {
			c.object("%d <%s>", c.seen[name], name)
		}
	}
	for _, id := range c.wanted {
		if !c.ids[id] {
			c.object("nothing has the id %q", id)
		}
	}
	last := "h0"
	for _, h := range c.headings {
		if h[1] > last[1]+1 {
			c.object("<%s> after <%s>", h, last)
		}
		last = h
	}
}

func TestObjections(t *testing.T) {
	t.Parallel()
	const head, foot = `<!DOCTYPE html><html lang="en"><head><title>x</title></head><body><header><nav></nav></header><main><h1>x</h1>`, `</main><footer></footer></body></html>`
	for _, c := range []struct{ name, inner, want string }{
		{"sound", `<p>fine</p>`, ""},
		{"open", `<div>`, "</main> closes <div>"},
		{"style", `<p style="color:red">x</p>`, "content security policy"},
		{"handler", `<p onclick="x()">x</p>`, "content security policy"},
		{"script", `<script>alert(1)</script>`, "<script> inline"},
		{"label", `<input name="q">`, "has no label"},
		{"button", `<button> </button>`, "<button> says nothing"},
		{"link", `<a href="./"></a>`, "<a> says nothing"},
		{"elsewhere", `<a href="https://example.com/">x</a>`, "leads elsewhere"},
		{"absolute", `<a href="/nodes">x</a>`, "leads elsewhere"},
		{"protocol", `<a href="javascript:alert(1)">x</a>`, "leads elsewhere"},
		{"scope", `<table><caption>c</caption><tr><th>x</th></tr></table>`, "<th> has no scope"},
		{"caption", `<table><tr><th scope="col">x</th></tr></table>`, "<table> has no caption"},
		{"id", `<p id="a">x</p><p id="a">x</p>`, `id "a" is there twice`},
		{"reference", `<p aria-labelledby="b">x</p>`, `nothing has the id "b"`},
		{"image", `<div role="img">x</div>`, "has no aria-label"},
		{"drawing", `<svg></svg>`, "neither an image nor hidden"},
		{"headings", `<h3>x</h3>`, "<h3> after <h1>"},
		{"two h1", `<h1>x</h1>`, "2 <h1>"},
		{"tabindex", `<p tabindex="3">x</p>`, "tabindex 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := objections(head + c.inner + foot)
			if c.want == "" && len(got) > 0 {
				t.Errorf("got %q, want no objection", got)
			}
			if c.want != "" && !strings.Contains(strings.Join(got, "; "), c.want) {
				t.Errorf("got %q, want %q among them", got, c.want)
			}
		})
	}
}
