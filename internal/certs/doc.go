// Package certs answers one question: which certificates do these files hold now?
//
// [Open] reads [Files] and returns a [Store], whose TLS configurations follow the files:
// each handshake looks whether they have changed, at most once a second, so certificates
// are rotated without a restart. Files that cannot be used leave the last good ones in
// force, and are logged.
//
// There are no goroutines.
package certs
