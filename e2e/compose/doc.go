// Package compose answers: does the sample deployment keep its promises in containers?
// Its test starts deploy/compose on the Docker engine that answers, without Prometheus
// and Grafana, scales it, kills a container, cuts one off, and lets package judge
// judge what was handled. The images are built from what is installed, as an engine
// without a registry can do. Without an engine the test skips and says so.
package compose
