// Package certs answers one question: which certificates do these files hold now?
//
// [Open] reads [Files] and returns a [Store]. The TLS configurations of the Store follow the files.
// Each handshake checks whether the files have changed, at most once a second. So certificates are
// rotated without a restart. If the new files cannot be used, the last good files stay in force, and
// the error is logged.
//
// There are no goroutines.
package certs
