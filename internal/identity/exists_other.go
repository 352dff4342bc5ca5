//go:build !linux

package identity

// exists is never asked here: This names no host.
func exists(int) bool { return true }
