// Package web answers one question: what does a node say over HTTP?
//
// [Serve] makes a node serve HTTP while it runs, with limits on connections, bodies and memory. [New] builds
// the handler for a server of the program's own, below any prefix. The handler serves the JSON API below
// /api/v1, health and readiness, metrics, profiles, and the pages of [Config] if there are any. The page
// at /api/v1/ describes it for people, and openapi.yaml for programs. The answers come from a [Node] and its
// Redis client. Their types are in package status and in answers.go.
//
// Every route is a row of a table (routes.go). The page is made from the table. openapi.yaml is made from the
// table and from the types of bodies and answers (describe_test.go). A handler returns its answer or an error,
// and ProblemOf turns errors into problem details (RFC 9457). A malformed request changes nothing, because
// parameters and bodies are read completely and checked before anything is sent to Redis. A push needs only
// Redis, whatever the state of the cluster (I7).
//
// Serve starts goroutines, which end with the node. A request waits only under its own context.
package web
