//go:build !linux

package identity

// exists is never called here, because ThisProcess returns no host.
func exists(int) bool { return true }
