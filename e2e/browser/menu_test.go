//go:build linux

package browser

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/lowkiq/lowkiq/queue/workflow"
)

// The state of the first menu of a page, and of the focus.
const (
	menuOpen    = `document.querySelector("details.menu").open`
	menuClosed  = `!document.querySelector("details.menu").open`
	onItsButton = `document.activeElement === document.querySelector("details.menu summary")`
)

// focusMenu gives the focus to the button of the first menu.
func (b *tab) focusMenu() {
	b.t.Helper()
	eval[bool](b, `(document.querySelector("details.menu summary").focus(), true)`)
}

// TestMenu checks that a menu with destructive buttons works by keyboard, stays open while the page changes, and
// closes.
func TestMenu(t *testing.T) {
	t.Parallel()
	browser := chromium(t)
	w := newWorld(t, "n1")
	w.pause("idle")
	w.schedule("idle", named("later", 3)...)

	b := newTab(t, browser, looks[0])
	b.open(w.url("n1") + "/queues/idle")
	b.sees("the menu", menuClosed)
	b.focusMenu()
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees("an open menu", menuOpen)
	b.do(chromedp.KeyEvent(kb.Tab))
	b.sees("the focus on a button of the menu", `document.activeElement.matches("details.menu button.danger")`)
	w.push("idle", named("ok", 7)...)
	b.sees("the push", `document.querySelector("[data-figures]").innerText.includes("7")`)
	b.sees("the menu as before", menuOpen+` && document.activeElement.matches("details.menu button.danger")`)
	b.shoot("menu")
	for _, o := range b.objections() {
		t.Error(o)
	}
	b.do(chromedp.KeyEvent(kb.Escape))
	b.sees("the menu closed, and the focus on its button", menuClosed+" && "+onItsButton)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees("the menu open again", menuOpen)
	b.do(chromedp.Click("h1"))
	b.sees("the menu closed by a click beside it", menuClosed)
	// What the menus of a workflow say is on the screen of a phone.
	w.startWorkflow(workflow.Workflow{ID: "import-42", Open: true})
	b.open(w.url("n1") + "/workflow?id=import-42")
	for i, name := range []string{"close", "cancel"} {
		eval[bool](b, fmt.Sprintf(`(document.querySelectorAll("details.menu summary")[%d].click(), true)`, i))
		b.sees("the open menu on the screen", fmt.Sprintf(`(({left, right}) => left >= 0 && right <= innerWidth && right > 0)(document.querySelectorAll("details.menu form")[%d].getBoundingClientRect())`, i))
		b.shoot("menu-" + name)
	}
	for _, fault := range b.wrong() {
		t.Error(fault)
	}

	// Without scripts its button opens and closes it, and another menu closes it.
	b = newTab(t, browser, looks[2])
	b.do(command(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
	b.open(w.url("n1") + "/queues/idle/jobs")
	b.focusMenu()
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees("an open menu", menuOpen)
	eval[bool](b, `(document.querySelectorAll("details.menu summary")[1].click(), true)`)
	b.sees("the other menu instead", menuClosed+` && document.querySelectorAll("details.menu")[1].open`)
	eval[bool](b, `(document.querySelectorAll("details.menu summary")[1].click(), true)`)
	b.sees("both closed", `document.querySelectorAll("details.menu[open]").length === 0`)
}
