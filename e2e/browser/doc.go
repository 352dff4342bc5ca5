// Package browser tests whether the dashboard keeps its promises in a real browser. It is a module of its own, so that
// lowkiq does not depend on the driver of the browser.
//
// Everything is real: a redis-server, three nodes of the built binary, a headless Chromium. Without a Chromium on PATH the
// tests are skipped. "make test-all" first runs scripts/chromium.sh, which installs a Chromium or says why not.
//
// axe.js checks a page for assistive technology and for readability. A page that breaks each of its rules on purpose shows
// that it finds faults. Screenshots of every page, in two widths and two color schemes, are left in artifacts/.
package browser
