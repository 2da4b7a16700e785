package drift_test

import (
	"testing"

	"github.com/trunkline/trunkline/internal/core/drift"
)

func TestASummaryHasTheFirstFewAndCountsTheRest(t *testing.T) {
	for _, tc := range []struct {
		list []string
		want string
	}{
		{nil, ""},
		{[]string{"rule 1", "rule 2", "rule 3"}, "rule 1; rule 2; rule 3"},
		{[]string{"rule 1", "rule 2", "rule 3", "rule 4", "rule 5"}, "rule 1; rule 2; rule 3; and 2 more"},
	} {
		if got := drift.Summary(tc.list); got != tc.want {
			t.Errorf("%q: %q, want %q", tc.list, got, tc.want)
		}
	}
}
