// Package check answers: is what deploy ships right? It is a module of its own, so that
// the libraries of Prometheus and Kubernetes, which know, are no dependencies of lowkiq.
// There is nothing in it but tests.
package check
