package conformance

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// Verdicts of a run: the sample of `make test`, and of `make suites`.
const (
	sampled = 400_000
	full    = 3_000_000
)

func isFull() bool { return os.Getenv("TRUNKLINE_SUITES") == "full" }

// seedOf is the seed of TRUNKLINE_CONFORMANCE_SEED, or another for each run.
func seedOf(t *testing.T) uint64 {
	text := os.Getenv("TRUNKLINE_CONFORMANCE_SEED")
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("TRUNKLINE_CONFORMANCE_SEED=%q: must be a number", text)
	}
	return seed
}

func TestRandomPoliciesHaveTheVerdictsOfCyclonus(t *testing.T) {
	seed, verdicts := seedOf(t), sampled
	if isFull() {
		verdicts = full
	}
	r := Compare(seed, verdicts, (*policy.Cluster).Evaluate)
	t.Logf("seed %d\n%s", seed, r)
	for _, u := range r.Unclassified {
		t.Errorf("a difference of no class:\n%s", u)
	}
	if isFull() {
		if err := writeReport(seed, r); err != nil {
			t.Fatal(err)
		}
	}
}
