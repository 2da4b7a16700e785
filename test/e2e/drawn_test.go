//go:build lab

package e2e

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// drawnLabs is how many of the tests in labs of their own a run of `make test-lab` makes.
const drawnLabs = 2

// labsOfTheirOwn are the tests of which it makes some.
func labsOfTheirOwn() []string {
	return []string{
		"TestAL2023", "TestImages", "TestInterruptedLabLeavesNothingBehind", "TestIptables", "TestMigration", "TestNeverUnprotected", "TestNoCloud",
		"TestSecurityGroupsOfOtherModes", "TestSmallNode",
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
	names := labsOfTheirOwn()
	if !slices.Contains(names, t.Name()) {
		t.Fatalf("%s is not among the tests that are drawn", t.Name())
	}
	if list := draw(names, seed, drawnLabs); !slices.Contains(list, t.Name()) {
		t.Skipf("LAB_SEED=%s draws %s; `make suites` and `go test -tags lab -run %s ./test/e2e` run it", seed, strings.Join(list, ", "), t.Name())
	}
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

// Each test is drawn by some seed, and as many by each.
func TestEachLabIsDrawnBySomeSeed(t *testing.T) {
	seen := map[string]bool{}
	for seed := range 100 {
		list := draw(labsOfTheirOwn(), strconv.Itoa(seed), drawnLabs)
		if len(slices.Compact(slices.Sorted(slices.Values(list)))) != drawnLabs {
			t.Errorf("seed %d draws %v", seed, list)
		}
		for _, name := range list {
			seen[name] = true
		}
	}
	for _, name := range labsOfTheirOwn() {
		if !seen[name] {
			t.Errorf("%s is never drawn", name)
		}
	}
}
