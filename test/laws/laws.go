// Package laws checks the project's rules as tests: which packages may import which,
// which file owns the numbers of a node, that every package has a comment, how large a
// type or a file may be, that texts are plain technical English. A failure prints the
// reason of the rule.
//
// It reads the source tree and touches nothing.
package laws
