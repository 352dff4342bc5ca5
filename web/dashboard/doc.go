// Package dashboard answers one question: what does a person see of the cluster, and what
// can they do to it?
//
// [New] builds the handler of the pages; package web puts it behind tokens, headers and
// the protection against other sites' pages. Pages are made on the server and can be read
// without JavaScript; a small script keeps some of them live, by server-sent events.
//
// Figures come from one snapshot, which all pages and streams share (sampler.go, snapshot.go).
// [Dashboard.Run] is the one goroutine that reads it, in sweeps through all shards: one every 2 s
// while pages are watched, one every 15 s otherwise, in steps that take at most a tenth of Redis's
// time however many shards there are. No stream asks Redis for anything. Lists and jobs are read
// per request, in bounded steps of package queue.
//
// What a person may do to jobs is the table of browse.Actions. Every button goes the same way
// (request.go): a form asks what is meant, counted now, a second one does it, and a redirect leads
// to a page whose address says what was done, so that a reload repeats nothing and any node can
// show it. Nothing is changed by GET.
package dashboard
