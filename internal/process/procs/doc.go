// Package procs answers one question: which processes of this host live, and what does this one use? It reads /proc, so its
// functions return errors on other systems than Linux.
package procs
