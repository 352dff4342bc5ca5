// Command lowkiq-migrate moves the jobs of a worker of Ruby's Lowkiq into a queue, and back.
//
// The package answers one question: what does a person get who moves such a worker? migrate.go has the grammar and the run,
// and help.md the help. Packages migrate/rubyqueue and migrate/movein do the work. The only goroutines wait for signals.
//
// The exit codes and the shape of -o json, as --help describes them, are promises to scripts. Each error is a line on stderr
// that begins with "lowkiq-migrate: ".
package main
