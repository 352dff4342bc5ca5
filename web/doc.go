// Package web answers one question: what does a node say over HTTP?
//
// [New] builds the handler: the JSON API below /api/v1, health and readiness,
// metrics, profiles, and a description of all that: for people at /api/v1/, for programs in
// openapi.yaml. [Config] names where its answers
// come from; [Status] is what a node knows of its cluster, in the form that scripts
// rely on. [Server] puts the handler behind sane limits.
//
// Every route is a row of one table (routes.go), the page is made from the same table, and
// a test holds openapi.yaml against it. A route returns an error, and one place turns errors into problem details
// (RFC 9457). A request that is malformed changes nothing: parameters and bodies are
// read completely and checked before anything is sent to Redis. A push needs Redis
// only, whatever the state of the cluster (I7).
//
// The package has no goroutines. What waits, waits under the request's context.
package web
