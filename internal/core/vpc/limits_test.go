package vpc

import "testing"

// Source of MaxPods: awslabs/amazon-eks-ami, max-pods-calculator.sh; an m5.large has 29, and 20 with
// an interface for a trunk.
func TestATrunkTakesAnInterface(t *testing.T) {
	large := Limits{ENIs: 3, IPv4: 10, IPv6: 10, Branches: 9}
	if got := large.MaxPods(); got != 29 {
		t.Errorf("an m5.large has %d pods, want 29", got)
	}
	got := large.WithTrunk()
	if want := (Limits{ENIs: 2, IPv4: 10, IPv6: 10, Branches: 9}); got != want || got.MaxPods() != 20 {
		t.Errorf("with a trunk an m5.large has %+v and %d pods, want %+v and 20", got, got.MaxPods(), want)
	}
	one := Limits{ENIs: 2, IPv4: 4, IPv6: 4, Branches: 1}
	if got := one.WithTrunk(); got.ENIs != 1 {
		t.Errorf("a type with one branch has %d interfaces beside the trunk, want 1", got.ENIs)
	}
	without := Limits{ENIs: 3, IPv4: 6, IPv6: 6}
	if got := without.WithTrunk(); got != without {
		t.Errorf("a type that has no trunks has %+v, want %+v", got, without)
	}
}
