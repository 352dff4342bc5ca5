// Command lowkiq-node runs a node, feeds it and shows what it does.
//
// The package answers one question: what does a person or a script at a shell get?
// Each command is a struct with a Run method; the grammar is in cli.go, help with examples in help.md,
// the exit codes in exit.go. The commands that do something to jobs are those of the table of actions
// (actions.go). The Run of a command that asks a node gets a conversation. What is more than reading
// flags and printing is below internal: config reads the file, feed pushes a stream, manual describes
// the commands. Package internal/remote asks a node over HTTP.
//
// run, dev, push and check talk to Redis; the other commands ask a node over HTTP. Goroutines:
// one that waits for signals, and one that waits for a started node's address.
//
// It promises to scripts what --help says: the exit codes, the last line of push on
// stdout, and the shapes of -o json. Errors are one line on stderr, beginning with
// "lowkiq-node: ".
package main
