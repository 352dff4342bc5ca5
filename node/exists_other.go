//go:build !linux

package node

// exists is never asked here: thisProcess names no host.
func exists(int) bool { return true }
