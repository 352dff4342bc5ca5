// Command lowkiq-node runs a node, pushes jobs to it and shows what it does.
//
// The package answers one question: what does a person or a script at a shell get? Each command is a struct with a Run
// method. The grammar is in cli.go, help with examples in help.md, the exit codes in exitcode.go. The commands that change
// jobs come from the table of actions (actions.go). Run of a command that asks a node gets a session. Package internal/feed
// pushes a stream. The packages below cmd/internal also serve lowkiq-migrate: config reads the file, connect finds Redis,
// terminal prints, manual describes the commands. Package internal/network/remote sends requests to a node.
//
// The commands run, dev, push and check talk to Redis. The other commands ask a node over HTTP. There are two goroutines.
// The first waits for signals, and the second for the address of a node that starts.
//
// The exit codes, the last line of push on stdout, and the shapes of -o json are promises to scripts, as --help describes
// them. Each error is a line on stderr that begins with "lowkiq-node: ".
package main
