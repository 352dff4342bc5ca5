// Package manual answers one question: what does the command line offer, as completion for bash, zsh and fish, and as a page
// of Markdown?
//
// [ReadGrammar] reads a [Command] from the grammar of kong. Everything else is a function from a Command to text. The
// package knows no particular command, so it cannot leave one out. There are no goroutines.
package manual
