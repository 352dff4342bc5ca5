package main

import (
	"fmt"
	"net"
)

// The address of the HTTP API where none is configured: the first of these ports that is
// free, so that several nodes of one host need no configuration.
const (
	firstHTTPPort = 7948
	portStep      = 10
	portTries     = 100
)

func freeAddress() string {
	for i := range portTries {
		address := fmt.Sprintf("127.0.0.1:%d", firstHTTPPort+i*portStep)
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	return "127.0.0.1:0"
}
