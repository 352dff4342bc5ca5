// Package manual answers what the command line offers, in the forms that shells and readers
// want: completion for bash, zsh and fish, a man page, a page of Markdown.
//
// A [Command] is read from kong's grammar by [Read]; the rest are functions of it, text out.
// Nothing is known of any command in particular, so nothing can be forgotten. No goroutines.
package manual
