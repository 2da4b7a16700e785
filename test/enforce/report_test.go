package enforce

import (
	"testing"

	"github.com/trunkline/trunkline/test/suite"
)

// report is about the whole suites of this package.
func report() suite.Report {
	return suite.Report{
		Name:     "policy-packets.txt",
		Head:     "Packets between pods under network policies, in full.",
		Covered:  []string{"bpf", "internal/control/policy", "internal/core/policy", "internal/core/ruleset", "internal/edge/bpf", "internal/edge/link", "internal/edge/nft"},
		Suites:   "test/enforce",
		Sections: map[string]int{"first packet": wiringsFull, "change": flipsFull, "life": endsFull, "malformed": framesFull, "trace": tracedFull},
	}
}

// writeReport writes a section of the report, if the suites run in full and the test has not failed.
func writeReport(t *testing.T, section string, number int, of string, seed uint64, body string) {
	t.Helper()
	t.Logf("%d %s, seed %d: %s", number, of, seed, body)
	if !suite.IsFull() || t.Failed() {
		return
	}
	if err := report().Write(section, suite.Counted{Number: number, Of: of, Seed: seed}, body); err != nil {
		t.Fatal(err)
	}
}

func TestTheReportHasNoFailureAndMatchesTheCode(t *testing.T) { report().Check(t) }
