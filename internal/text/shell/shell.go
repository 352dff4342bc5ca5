// Package shell quotes texts for a shell.
package shell

import "strings"

// Quote returns a text in quotes.
func Quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// Word returns a text as an argument of a command. It quotes the text only if a shell or the command would change it.
func Word(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/@+-"
	if text != "" && text[0] != '-' && strings.Trim(text, plain) == "" {
		return text
	}
	return Quote(text)
}
