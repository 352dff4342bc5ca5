// Package dashboard shows people the cluster, and lets them change it.
//
// [New] builds the handler of the pages. Package web puts it behind tokens, headers and the protection against
// other sites' pages. Pages are made on the server and can be read without JavaScript. A small script keeps some
// of them live, by server-sent events.
//
// Figures come from a snapshot, which all pages and streams share (sampler.go, snapshot.go). [Dashboard.Run]
// reads it, in a single goroutine and in sweeps through all shards. A sweep begins every 2 s while pages are
// watched, and every 15 s otherwise. Its steps take at most a tenth of Redis's time, however many shards there
// are. No stream asks Redis for anything. Lists and jobs are read per request, in bounded steps of package queue/protocol.
//
// The buttons come from the table of package actions. Every button goes the same way (request.go). Its
// form leads to a question with current counts, and the form of the question performs the action. A
// redirect then leads to a page with the result in its address, so a reload repeats nothing and any node
// can show the page. A GET changes nothing.
//
// A node keeps nothing for a person between two requests. Sessions are stateless (package auth), and a form carries
// everything that its action needs. So the nodes of a cluster may serve a person in turn behind a balancer.
//
// Who may change something is decided by the guard of package web, for each POST. Pages also leave out the
// forms that the guard would refuse (auth.MayChange), but nothing depends on that.
package dashboard
