//go:build lab

package e2e

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
)

// labsOfTheirOwn are tests in labs of their own. A run of `make test-lab` makes one of each list, and
// those that are in none.
func labsOfTheirOwn() [][]string {
	return [][]string{
		{"TestNeverUnprotected", "TestSecurityGroupsOfOtherModes"},
		{"TestImages", "TestInterruptedLabLeavesNothingBehind", "TestIptables", "TestNoCloud", "TestSmallNode"},
	}
}

// drawn skips a test that the seed of `make test-lab` does not draw. Without a seed, as by hand and in
// `make suites`, all run.
func drawn(t *testing.T) {
	t.Helper()
	seed := os.Getenv("TRUNKLINE_LAB_SEED")
	if seed == "" || full() {
		return
	}
	for _, names := range labsOfTheirOwn() {
		if !slices.Contains(names, t.Name()) {
			continue
		}
		if one := draw(names, seed, 1)[0]; one != t.Name() {
			t.Skipf("LAB_SEED=%s draws %s; `make suites` and `go test -tags lab -run %s ./test/e2e` run it", seed, one, t.Name())
		}
		return
	}
	t.Fatalf("%s is not among the tests that are drawn", t.Name())
}

// drawnSteps is how many of the long steps of TestLab such a run makes.
const drawnSteps = 2

func longSteps() []string {
	return []string{
		"a version rolls out and back under a churn of jobs without failing an ADD or breaking a flow",
		"agents killed at random moments leave no pod stuck and nothing behind",
		"scaling from 0 to 100 pods and back leaves nothing behind",
		"a node recovers from a power loss; a leaked interface is collected meanwhile",
	}
}

// skipUndrawn skips a long step that the seed does not draw.
func skipUndrawn(t *testing.T, name string) {
	t.Helper()
	seed := os.Getenv("TRUNKLINE_LAB_SEED")
	if seed == "" || full() || !slices.Contains(longSteps(), name) || slices.Contains(draw(longSteps(), seed, drawnSteps), name) {
		return
	}
	t.Skipf("LAB_SEED=%s draws other steps; `make suites` and `make test-lab LAB_SEED=` run it", seed)
}

func TestLongStepsAreSteps(t *testing.T) {
	for _, name := range longSteps() {
		if !slices.ContainsFunc(steps(), func(s step) bool { return s.name == name }) {
			t.Errorf("TestLab has no step %q", name)
		}
	}
}

// draw draws some of the names by a seed.
func draw(names []string, seed string, n int) []string {
	rank := func(name string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(seed+" "+name))) }
	return slices.SortedFunc(slices.Values(names), func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })[:n]
}

func TestEachLabIsDrawnBySomeSeed(t *testing.T) {
	for _, names := range labsOfTheirOwn() {
		seen := map[string]bool{}
		for seed := range 100 {
			seen[draw(names, strconv.Itoa(seed), 1)[0]] = true
		}
		for _, name := range names {
			if !seen[name] {
				t.Errorf("%s is never drawn", name)
			}
		}
	}
}
