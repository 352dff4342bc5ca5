// Package browser asks one question: does the dashboard do in a real browser what it
// promises? It consists of tests, and is a module of its own so that the driver of the
// browser is no dependency of lowkiq.
//
// Everything is real: a redis-server, three nodes of the built binary, a headless
// Chromium. Without a Chromium on PATH the tests are skipped; scripts/chromium.sh, which
// "make test" runs before them, installs one or says so.
//
// axe.js looks at a page as assistive technology and tired eyes do; a page that breaks
// each of its rules on purpose shows that it would tell. Screenshots of every page, at
// two widths and in both schemes, are left in artifacts/.
package browser
