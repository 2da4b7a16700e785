// Package conformance compares Trunkline's policy engine with cyclonus
// (github.com/mattfenwick/cyclonus), which knows Kubernetes' NetworkPolicy by code of its own.
//
// Draw draws clusters with policies and connections, Compare judges them by both, and Classes
// are the differences that have a reason, with the text of Kubernetes that decides who is right.
// A difference without a class fails the test, and so does a verdict that cyclonus does not give
// once it is corrected by the texts of all classes. cases has cyclonus's own test cases.
//
// Tests with the tag netns, which need root, have the kernel judge the same connections (test/testrun),
// also with policies of every tier (DrawTiers), which cyclonus does not know.
//
// It is a module of its own, so that cyclonus's dependencies never reach the product. It touches
// nothing but, in `make suites`, its reports.
package conformance
