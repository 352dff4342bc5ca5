// Package clients tests the clients in other languages against a real node. It has nothing but tests.
package clients
