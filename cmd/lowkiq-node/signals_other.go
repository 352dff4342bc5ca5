//go:build !unix

package main

import "os"

func stackSignals() []os.Signal { return nil }
