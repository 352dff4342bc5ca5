//go:build !linux

package e2e

import "testing"

func TestNeedsLinux(t *testing.T) { t.Skip("the end-to-end tests look into /proc: run them on Linux") }
