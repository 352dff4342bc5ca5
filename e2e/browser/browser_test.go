//go:build linux

package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// browsers are the names under which a Chromium may be installed.
var browsers = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell"}

// shared is the browser of all tests. TestMain ends it.
var shared struct {
	once sync.Once
	ctx  context.Context // nil: there is no browser on PATH
	err  error
	end  func()
}

// chromium is a context in which tabs are opened. Without a browser the test is skipped:
// scripts/chromium.sh has said so loudly.
func chromium(t testing.TB) context.Context {
	t.Helper()
	shared.once.Do(func() {
		for _, name := range browsers {
			if path, err := exec.LookPath(name); err == nil {
				start(path)
				return
			}
		}
	})
	switch {
	case shared.err != nil:
		t.Fatalf("start chromium: %v", shared.err)
	case shared.ctx == nil:
		t.Skipf("no browser on PATH (looked for %s): apt-get install chromium", strings.Join(browsers, ", "))
	}
	return shared.ctx
}

func start(path string) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.DisableGPU, chromedp.WSURLReadTimeout(patience))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium refuses root otherwise; it sees the pages of the tests only
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, closeBrowser := chromedp.NewContext(allocator)
	shared.end = func() { closeBrowser(); end() }
	shared.ctx, shared.err = ctx, chromedp.Do(ctx)
}

// look is how a person looks at a page.
type look struct {
	width  int64
	scheme string // light or dark
}

func (l look) String() string { return fmt.Sprintf("%d-%s", l.width, l.scheme) }

var looks = []look{{390, "light"}, {360, "dark"}, {1440, "light"}, {1440, "dark"}}

// tab is a tab of the browser.
type tab struct {
	t   testing.TB
	ctx context.Context
	look
	*faultLog
}

func newTab(t testing.TB, browser context.Context, l look) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	b := &tab{t: t, ctx: ctx, look: l, faultLog: newFaultLog()}
	b.listen(ctx)
	t.Cleanup(func() { cancel(); b.listeners.Wait() })
	b.do(
		chromedp.EmulateViewport(l.width, 900),
		command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: l.scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}}),
	)
	return b
}

// command makes a step of a command of the protocol.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

// do takes steps, together a matter of seconds.
func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	run(b, chromedp.Steps(steps...))
}

func run[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("%s at %s: %v", b.look, b.where(), err)
	}
	return value
}

func (b *tab) where() string {
	ctx, cancel := context.WithTimeout(b.ctx, time.Second)
	defer cancel()
	at, _ := chromedp.Run(ctx, chromedp.Location()) // for a message
	return at
}

func (b *tab) open(at string) {
	b.t.Helper()
	b.do(chromedp.Navigate(at))
}

// eval returns the value of a JavaScript expression.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](expression))
}

// sees waits until an expression holds on the page. If it never does, what the page shows is in the log.
func (b *tab) sees(what, expression string) {
	b.t.Helper()
	held := false
	defer func() {
		if !held {
			b.t.Logf("the page shows:\n%.3000s", eval[string](b, "document.body.innerText"))
		}
	}()
	await(b.t, fmt.Sprintf("%s at %s", what, b.where()), patience, func() bool { return eval[bool](b, expression) })
	held = true
}

// shoot leaves a picture of the whole page among the artifacts.
func (b *tab) shoot(name string) {
	b.t.Helper()
	png := run(b, chromedp.FullScreenshot(100))
	if err := os.MkdirAll("artifacts", 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("artifacts", name+"-"+b.look.String()+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}
