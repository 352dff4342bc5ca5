// Package procs answers one question: which processes of this host live? It reads /proc, so its
// functions return errors on other systems than Linux.
package procs
