// Package mutants measures what the tests notice: it makes small changes (mutants) of
// packages that decide or that write to disk and to EC2, runs their tests against each, and
// lists the changes that no test noticed. See docs/adr/0026-one-binary-for-all-mutants.md.
//
// All mutants of a package are compiled into one test binary, each behind a switch that the
// environment of the process selects, by an overlay: the checkout is not edited. A first run
// of each test records the mutants that make a difference in it; only those tests are run
// against them.
//
// test/mutants/cmd calls it (`make mutants`), writes test/reports/mutants.txt and keeps
// results in bin/mutants, from which an interrupted run continues. answers.txt has, for
// survivors, why no test needs to notice them; a test checks both against each other.
package mutants
