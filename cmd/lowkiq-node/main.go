package main

import (
	"os"

	"github.com/lowkiq/lowkiq/node/handler"
)

func main() {
	handler.Guard() // never returns in a process that guards an exec child
	os.Exit(execute(os.Args[1:], standardStreams()))
}
