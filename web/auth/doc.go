// Package auth answers one question: may the sender of this request do what it asks?
//
// A [Guard] judges a request by its token, its session or its client certificate, and by the name
// of the host that it is sent to. [Tokens] have roles; a browser gets a session for one at the
// login page. A session is stateless: any node with the same token knows it, and it ends with the
// token. What a request may do goes with its context: [MayChange], [Sender], [SessionEnd].
package auth
