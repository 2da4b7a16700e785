package ruleset

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// parts are those of a node with the two pods of config.
func parts() []Part {
	c := config()
	list := []Part{
		{Owner: "endpoint 1", Elements: c.Pods[0].Elements()},
		{Owner: "endpoint 2", Elements: c.Pods[1].Elements()},
	}
	c.Pods = nil
	return append([]Part{{Owner: "node", Ruleset: Compile(c)}}, list...)
}

// actual are the tables as they should be, after a change of the inet one.
func actual(change func(t *nftables.Table)) *Actual {
	var tables []*nftables.Table
	for _, t := range Compile(config()).Tables {
		if t.Family == nftables.Inet {
			change(&t)
		}
		tables = append(tables, &t)
	}
	return NewActual(tables)
}

func TestEachChangeOfATableIsADifferenceOfTheNode(t *testing.T) {
	hook := func(f func(h *nftables.Hook)) func(t *nftables.Table) {
		return func(t *nftables.Table) {
			changed := *t.Chain("antispoof").Hook
			f(&changed)
			t.Chain("antispoof").Hook = &changed
		}
	}
	for name, c := range map[string]struct {
		change func(t *nftables.Table)
		want   string
	}{
		"none":               {func(*nftables.Table) {}, ""},
		"a dormant table":    {func(t *nftables.Table) { t.Dormant = true }, "has flags"},
		"a set deleted":      {func(t *nftables.Table) { t.Sets = t.Sets[1:] }, "set sources4 is missing"},
		"a set of another":   {func(t *nftables.Table) { t.Set("pods4").Key = []nftables.Type{nftables.TypeIPv6} }, "set pods4 has another type"},
		"a set added":        {func(t *nftables.Table) { t.Sets = append(t.Sets, nftables.Set{Name: "other"}) }, "set other is not ours"},
		"a chain deleted":    {func(t *nftables.Table) { t.Chains = t.Chains[1:] }, "chain antispoof is missing"},
		"a chain added":      {func(t *nftables.Table) { t.Chains = append(t.Chains, nftables.Chain{Name: "other"}) }, "chain other is not ours"},
		"another priority":   {hook(func(h *nftables.Hook) { h.Priority++ }), "chain antispoof has another hook or policy"},
		"another policy":     {hook(func(h *nftables.Hook) { h.Policy = nftables.PolicyDrop }), "chain antispoof has another hook or policy"},
		"a rule deleted":     {func(t *nftables.Table) { t.Chain("from_pod").Rules = t.Chain("from_pod").Rules[:2] }, "chain from_pod has 2 rules, not 3"},
		"a rule replaced":    {func(t *nftables.Table) { r := t.Chain("from_pod").Rules; r[1] = r[2] }, "rule 2 of chain from_pod is another"},
		"the last rule only": {func(t *nftables.Table) { t.Chain("from_pod").Rules[2].Comment = "" }, "rule 3 of chain from_pod is another"},
	} {
		var want []Difference
		if c.want != "" {
			want = []Difference{{"table inet trunkline", c.want}, {Object: "set kept4 of table trunkline"}}
		}
		if diff := cmp.Diff(want, actual(c.change).Diff(parts()[0])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestOtherRangesAreADifferenceOfTheirSet(t *testing.T) {
	for name, change := range map[string]func(s *nftables.Set){
		"one fewer": func(s *nftables.Set) { s.Elements = s.Elements[1:] },
		"one more": func(s *nftables.Set) {
			s.Elements = append(s.Elements, nftables.Element{Key: nftables.Addr(addr("203.0.113.0")), Last: nftables.Addr(addr("203.0.113.9"))})
		},
	} {
		got := actual(func(t *nftables.Table) { change(t.Set("kept4")) }).Diff(parts()[0])
		if diff := cmp.Diff([]Difference{{"set kept4 of table trunkline", "had other ranges"}}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestElementsThatArePresentAreNoDifferenceOfTheirPod(t *testing.T) {
	all := parts()
	have := actual(func(t *nftables.Table) { t.Set("pods4").Elements = t.Set("pods4").Elements[1:] }) // of the first pod
	for i, want := range [][]Difference{nil, {{"set pods4 of table trunkline", "lacked 1 elements"}}, nil} {
		if diff := cmp.Diff(want, have.Diff(all[i])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", all[i].Owner, diff)
		}
	}
	empty := actual(func(t *nftables.Table) { t.Set("sources6").Elements = nil })
	if diff := cmp.Diff([]Difference{{"set sources6 of table trunkline", "lacked 2 elements"}}, empty.Diff(all[2])); diff != "" {
		t.Errorf("without elements of the set (-want +got):\n%s", diff)
	}
	gone := actual(func(t *nftables.Table) {
		t.Sets = slices.DeleteFunc(t.Sets, func(s nftables.Set) bool { return s.Name == "pods4" })
	})
	if diff := cmp.Diff([]Difference{{Object: "set pods4 of table trunkline"}}, gone.Diff(all[1])); diff != "" {
		t.Errorf("without the set (-want +got):\n%s", diff)
	}
}

func TestElementsOfNoPartAreExtra(t *testing.T) {
	unchanged := func(*nftables.Table) {}
	if got := actual(unchanged).Extra(parts()); len(got) > 0 {
		t.Errorf("as desired: %q", got)
	}
	// Without the second pod; the ranges of kept4 belong to the node.
	want := []string{
		"set metadata4 of table trunkline: had 1 elements too many",
		"set metadata6 of table trunkline: had 1 elements too many",
		"set pods4 of table trunkline: had 1 elements too many",
		"set sources of table trunkline: had 1 elements too many",
		"set sources4 of table trunkline: had 1 elements too many",
		"set sources6 of table trunkline: had 2 elements too many",
	}
	if diff := cmp.Diff(want, actual(unchanged).Extra(parts()[:2])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPartsAreEqualInOwnerRulesetAndElements(t *testing.T) {
	a := parts()
	if again := parts(); !a[0].Equal(again[0]) || !a[1].Equal(again[1]) {
		t.Error("a part differs from itself")
	}
	owner, elements, ruleset := a[1], a[1], a[0]
	owner.Owner = "endpoint 3"
	elements.Elements = elements.Elements[1:]
	c := config()
	c.VPCCIDRs = append(c.VPCCIDRs, netip.MustParsePrefix("10.1.0.0/16"))
	c.Pods = nil
	ruleset.Ruleset = Compile(c)
	for name, pair := range map[string][2]Part{
		"another owner": {a[1], owner}, "fewer elements": {a[1], elements}, "another VPC range": {a[0], ruleset},
	} {
		if pair[0].Equal(pair[1]) {
			t.Errorf("%s: the parts are equal", name)
		}
	}
}

func TestSNATChoosesPortsAsConfigured(t *testing.T) {
	for random, want := range map[Randomize]string{
		"": "fully-random", RandomFully: "fully-random", RandomHash: "random", RandomNone: "",
	} {
		c := config()
		c.Random = random
		_, text, found := strings.Cut(Compile(c).String(), "snat ip to 10.0.0.10")
		text, _, _ = strings.Cut(text, "comment")
		if !found || strings.TrimSpace(text) != want {
			t.Errorf("randomize %q: snat %q, want %q", random, text, want)
		}
	}
	none := config()
	none.PrimaryIPv4 = netip.Addr{}
	if text := Compile(none).String(); strings.Contains(text, "snat") {
		t.Errorf("translated to no address:\n%s", text)
	}
}

func TestAPodOfTheRulesetHasTheAttachmentOfItsEndpoint(t *testing.T) {
	e := endpoint.Endpoint{Link: "enix", PodMAC: macA, Addresses: endpoint.AddressesOf(addr("10.0.0.12"))}
	want := Pod{Link: "enix", MAC: macA, Addresses: []netip.Addr{addr("10.0.0.12")}, Metadata: true}
	if diff := cmp.Diff(want, PodOf(e, true), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
