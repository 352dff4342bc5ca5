package main

import (
	"fmt"
	"slices"
	"strings"
)

// refusal says why a command cannot work on an operating system, nil where it can. A
// node needs what only a Unix has; the commands that talk to Redis or to a node do not.
func refusal(goos, command string) error {
	name, _, _ := strings.Cut(command, " ")
	if goos != "windows" || !slices.Contains([]string{"run", "dev"}, name) {
		return nil
	}
	return fmt.Errorf("%s does not work on Windows: nodes need a Unix, as WSL or a Linux container is one; push, status and the other commands work here", name)
}
