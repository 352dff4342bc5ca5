package node

import "net/http"

func (n *Node) server() (*http.Server, error) {
	return &http.Server{Handler: http.NotFoundHandler()}, nil
}
