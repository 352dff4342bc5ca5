// Package web answers one question: what does a node say over HTTP?
//
// [Serve] makes a node serve it while it runs, behind sane limits; [New] builds the handler for a
// server of the program's own. That is the JSON API below /api/v1, health and readiness, metrics,
// profiles, the pages of [Config] if there are any, and a description of all that: for people at
// /api/v1/, for programs in openapi.yaml. Its answers come from a [Node] and its client of Redis;
// their shapes are those of package status and of answers.go.
//
// Every route is a row of one table (routes.go), the page is made from the same table, and a test
// holds openapi.yaml against it. A handler returns its answer or an error, and one place turns
// errors into problem details (RFC 9457). A request that is malformed changes nothing: parameters
// and bodies are read completely and checked before anything is sent to Redis. A push needs Redis
// only, whatever the state of the cluster (I7).
//
// Goroutines are those of Serve, which end with the node. What waits, waits under the request's
// context.
package web
