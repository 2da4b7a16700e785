package cli

import (
	"fmt"
	"strings"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
)

// mostNamed is how many interfaces a note names.
const mostNamed = 3

// notes are what a node reports of interfaces that are not used or kept, one line for each
// reason, and of other objects at EC2 that it cannot use.
func notes(st trunkline.NodeNetworkStatus) (out []string) {
	var reasons []string
	with, explained := map[string][]string{}, map[string]bool{}
	for _, e := range st.Interfaces {
		if e.Why == "" {
			continue
		}
		if with[e.Why] == nil {
			reasons = append(reasons, e.Why)
		}
		with[e.Why] = append(with[e.Why], e.ID)
		explained["interface "+e.ID] = true
	}
	for _, why := range reasons {
		out = append(out, named(with[why])+": "+why)
	}
	for _, line := range st.NotUsed {
		if object, _, _ := strings.Cut(line, ":"); !explained[object] {
			out = append(out, line)
		}
	}
	return out
}

// named lists interfaces, of many only the first.
func named(ids []string) string {
	if len(ids) == 1 {
		return "interface " + ids[0]
	}
	rest := ""
	if len(ids) > mostNamed {
		ids, rest = ids[:mostNamed], fmt.Sprintf(" and %d others", len(ids)-mostNamed)
	}
	return "interfaces " + strings.Join(ids, ", ") + rest
}
