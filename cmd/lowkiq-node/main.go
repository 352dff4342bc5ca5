package main

import (
	"os"

	"github.com/lowkiq/lowkiq/cmd/internal/terminal"
	"github.com/lowkiq/lowkiq/node/handler"
)

// program is the name at the beginning of errors.
const program = "lowkiq-node"

func main() {
	handler.Guard() // never returns in a process that guards an exec child
	os.Exit(execute(os.Args[1:], terminal.StandardStreams()))
}
