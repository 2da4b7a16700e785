// Package laws holds the project's rules as tests: who may import whom, who owns
// which number, that every package says what it is for, how large a type or a file
// may be. A failure prints the rule's reason, so that it can be followed or changed,
// not guessed.
//
// It reads the source tree and touches nothing.
package laws
