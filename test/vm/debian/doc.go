// Package debian tests what Trunkline needs of Debian 12's kernel: features, in tests that run
// in a virtual machine ("vmguest"), and tests of other packages there. It has no code.
package debian
