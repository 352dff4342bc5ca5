// Package compose tests whether the sample deployment keeps its promises in containers. Its test starts deploy/compose,
// without Prometheus and Grafana, on the Docker engine that answers. It scales the deployment, kills a container and cuts
// another off. Package judge judges the history. The images are built from the installed files, which an engine without a
// registry can do. Without an engine the test is skipped with a message.
package compose
