// Package auth answers: may the sender of a request do this?
//
// A [Guard] judges a request by its token, its session or its client certificate, and by the name
// of the host in it. [Tokens] have roles. At the login page a browser gets a session for a token. A
// session is stateless, so any node with the same token accepts it, and it ends with the token. The
// context of a request carries its access, for [MayChange], [Who], [SessionEnd].
package auth
