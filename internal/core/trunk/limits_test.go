package trunk_test

import (
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/trunk"
)

func TestTheNumberOfBranchesOfAnInstanceType(t *testing.T) {
	override := map[string]int{"m9": 12, "m9.large": 5, "t3": 3, "c5.huge": 0}
	for kind, want := range map[string]struct {
		n    int
		from string
	}{
		"m5.large": {9, "size large"}, "c5.4xlarge": {54, "size 4xlarge"}, "m6g.medium": {4, "size medium"}, "m7i.metal-48xl": {107, "bare metal"},
		"t2.micro": {0, "family t2"}, "i4i.large": {0, "family i4i"}, "x1e.32xlarge": {0, "family x1e"},
		"m9.large": {5, "type m9.large"}, "m9.xlarge": {12, "family m9"}, "t3.nano": {3, "family t3"}, "c5.huge": {0, "type c5.huge"},
		"c5.enormous": {0, "not known"}, "": {0, "not known"},
	} {
		if n, from := trunk.BranchLimit(kind, override); n != want.n || !strings.Contains(from, want.from) {
			t.Errorf("%s: %d, %s; want %d, %s", kind, n, from, want.n, want.from)
		}
	}
}
