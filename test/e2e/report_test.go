package e2e

import (
	"testing"

	"github.com/trunkline/trunkline/test/suite"
)

// unprotectedReport is about TestNeverUnprotected in full.
func unprotectedReport() suite.Report {
	return suite.Report{
		Name: "unprotected.txt",
		Head: "Pods that SecurityGroupPolicies select, created while parts of the system fail, and packets that their groups deny.",
		Covered: []string{
			"internal/app/admission", "internal/control/branch", "internal/control/groupfeed", "internal/control/groups", "internal/control/podadmission",
			"internal/control/trunk", "internal/core/grouprules", "internal/core/podadmission", "internal/core/podeni", "internal/core/securitygroup",
			"internal/core/trunk", "internal/edge/vlan", "internal/edge/webhook",
		},
		Suites:   "test/e2e",
		Tests:    []string{"unprotected*_test.go", "faults_test.go"},
		Sections: map[string]int{"own": 100, "managed": 100, "ebpf": 100},
	}
}

func TestTheReportHasNoFailureAndMatchesTheCode(t *testing.T) { unprotectedReport().Check(t) }
