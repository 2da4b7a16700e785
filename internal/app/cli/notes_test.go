package cli

import (
	"strings"
	"testing"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
)

func TestStatusSaysWhichInterfacesAreKeptOrNotUsed(t *testing.T) {
	in := healthy()
	st := &in.networks[0].Status
	st.Interfaces = []trunkline.Interface{{ID: "eni-0"}, {ID: "eni-1", Why: "kept for its 2 prefixes, with 3 pods of another CNI"}}
	for _, id := range []string{"eni-a", "eni-b", "eni-c", "eni-d", "eni-e"} {
		st.Interfaces = append(st.Interfaces, trunkline.Interface{ID: id, Why: "not used and not changed: it is not on network card 0"})
	}
	st.NotUsed = []string{"subnet subnet-6: it has no IPv4 range: it is IPv6-only", "interface eni-a: it has no private IPv4 address"}
	s := summarise(in, now())
	want := []string{
		"interface eni-1: kept for its 2 prefixes, with 3 pods of another CNI",
		"interfaces eni-a, eni-b, eni-c and 2 others: not used and not changed: it is not on network card 0",
		"subnet subnet-6: it has no IPv4 range: it is IPv6-only",
	}
	if got := s.Nodes[0].Notes; strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("notes:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(s.Nodes[1].Notes) != 0 || len(s.Errors) != 0 {
		t.Errorf("notes %q of the other node, errors %v", s.Nodes[1].Notes, s.Errors)
	}
	var out strings.Builder
	WriteStatus(&out, s)
	for _, line := range want {
		if !strings.Contains(out.String(), "  n1: "+line+"\n") {
			t.Errorf("status does not have %q:\n%s", line, &out)
		}
	}
}
