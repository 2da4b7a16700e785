package spec

import "testing"

func TestTrunkCallsAreAllowedIfTheLabSaysSo(t *testing.T) {
	for lab, want := range map[string]bool{"": false, "quotas: {trunkCalls: true}": true} {
		s, err := Parse([]byte(lab))
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Resolve()
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Cloud.Quotas.TrunkCalls; got != want {
			t.Errorf("lab.yaml %q: trunk calls %v, want %v", lab, got, want)
		}
	}
}
