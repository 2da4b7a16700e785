// Package crds checks the definitions of custom resources in deploy/ with the API server's own
// code: that it takes them, and which objects it accepts, refuses and prunes by them.
//
// It is a module of its own, so that the API server's dependencies never reach the product. It
// touches nothing.
package crds
