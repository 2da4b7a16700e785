// Package faulty has tests that fail in each way in which a virtual machine can. The tests of
// test/vm run them. It has no code.
package faulty
