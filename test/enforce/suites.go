package enforce

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/trunkline/trunkline/test/suite"
)

// Sample is a number of `make suites`, or the smaller one of `make test`.
func Sample(sample, suites int) int {
	if suite.IsFull() {
		return suites
	}
	return sample
}

// Seed is that of TRUNKLINE_ENFORCE_SEED, or another for each run. It is printed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text, set := os.LookupEnv("TRUNKLINE_ENFORCE_SEED"); set {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("TRUNKLINE_ENFORCE_SEED=%q: must be a number", text)
		}
	}
	t.Logf("seed %d", seed)
	return seed
}
