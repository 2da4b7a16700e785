package cyclonus

import (
	"testing"

	"github.com/trunkline/trunkline/test/suite"
)

// report is about all cases of cyclonus v0.5.6.
func report() suite.Report {
	return suite.Report{
		Name: "policy-cyclonus.txt",
		Head: "Connections of the cases of cyclonus v0.5.6, by real packets between pods of two nodes, also through Services of kube-proxy.",
		Covered: []string{
			"bpf", "internal/control/policy", "internal/core/policy", "internal/core/ruleset", "internal/edge/bpf", "internal/edge/link", "internal/edge/nft",
			"test/conformance/cases", "test/enforce",
		},
		Suites:   "test/cyclonus",
		Sections: map[string]int{"pod addresses": 230, "services, nftables": 230, "services, iptables": 230},
	}
}

func TestTheReportHasNoFailureAndMatchesTheCode(t *testing.T) { report().Check(t) }
