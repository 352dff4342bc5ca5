// Package procs answers one question: which processes of this host live? It looks into /proc, so it
// knows nothing elsewhere than on Linux, and says so.
package procs
