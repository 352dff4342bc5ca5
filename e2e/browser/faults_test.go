//go:build linux

package browser

import (
	"context"
	"fmt"
	"sync"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// faultLog keeps what a developer would see in red: exceptions, errors and warnings of the
// console, violations of the Content-Security-Policy, requests that were refused.
type faultLog struct {
	listeners sync.WaitGroup

	mu      sync.Mutex
	faults  []string        // guarded by mu
	allowed map[string]bool // URLs that may answer with an error; guarded by mu
	marks   int             // how many were read; guarded by mu
}

func newFaultLog() *faultLog { return &faultLog{allowed: map[string]bool{}} }

// mark is what a page says to show that all it said before has been read.
const mark = "the browser's test was here"

// listen begins before the first page, and ends with ctx.
func (e *faultLog) listen(ctx context.Context) {
	follow(e, chromedp.Console(ctx), e.console)
	follow(e, chromedp.Events(ctx, network.ResponseReceived), e.response)
	follow(e, chromedp.Events(ctx, audits.IssueAdded), e.issue)
	enable := chromedp.Steps(command(network.Enable, network.EnableParams{}), command(log.Enable, cdp.Empty{}), command(audits.Enable, cdp.Empty{}))
	if _, err := chromedp.Run(ctx, enable); err != nil {
		e.fault("cannot listen: %v", err)
	}
}

// follow passes a stream of events on until it ends, as it does with its context.
func follow[E any](e *faultLog, events func(func(E, error) bool), fn func(E)) {
	e.listeners.Go(func() {
		for event, err := range events {
			if err != nil {
				return
			}
			fn(event)
		}
	})
}

func (e *faultLog) console(m chromedp.ConsoleMessage) {
	switch {
	case m.Text == mark:
		e.mu.Lock()
		e.marks++
		e.mu.Unlock()
	case m.Type == "error" || m.Type == "warning" || m.Type == "assert" || m.IsException():
		if !e.mayFail(m.URL) {
			e.fault("console: %s %s", m, m.URL)
		}
	}
}

func (e *faultLog) response(r network.EventResponseReceived) {
	if r.Response.Status >= 400 && !e.mayFail(r.Response.URL) {
		e.fault("%d from %s", r.Response.Status, r.Response.URL)
	}
}

func (e *faultLog) issue(i audits.EventIssueAdded) {
	details := i.Issue.Details
	switch {
	case details == nil:
		e.fault("issue: %s", i.Issue.Code)
	case details.ContentSecurityPolicyIssueDetails != nil:
		d := details.ContentSecurityPolicyIssueDetails
		e.fault("the policy forbids %s %s %s", d.ViolatedDirective, d.BlockedURL, d.ContentSecurityPolicyViolationType)
	case details.PerformanceIssueDetails != nil, details.GenericIssueDetails != nil &&
		details.GenericIssueDetails.ErrorType == "NavigationEntryMarkedSkippable":
		// Of forms that are sent by a script without a click: the tests' doing.
	case details.GenericIssueDetails != nil:
		e.fault("issue: %s", details.GenericIssueDetails.ErrorType)
	default:
		e.fault("issue: %s", i.Issue.Code)
	}
}

func (e *faultLog) fault(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, fmt.Sprintf(format, args...))
}

// allow lets a URL answer with an error.
func (e *faultLog) allow(at string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.allowed[at] = true
}

func (e *faultLog) mayFail(at string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.allowed[at]
}

func (e *faultLog) marked() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.marks
}

// wrong returns what went wrong in the tab until now, and forgets it.
func (b *tab) wrong() []string {
	b.t.Helper()
	before := b.marked()
	eval[chromedp.Void](b, fmt.Sprintf("console.debug(%q)", mark))
	await(b.t, "the page's mark", patience, func() bool { return b.marked() > before })
	b.mu.Lock()
	defer b.mu.Unlock()
	faults := b.faults
	b.faults = nil
	return faults
}
