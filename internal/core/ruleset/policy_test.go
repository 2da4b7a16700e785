package ruleset

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// What is allowed has MarkJudged (0x800) and neither MarkPending (0x1000) nor, of what pods send, kube-proxy's
// mark (0x4000): each rule that allows sets and clears them.
func TestTheChainsOfPoliciesMarkWhatTheyAllow(t *testing.T) {
	const want = `policy_out
  oifgroup 31312 goto policy_local
  xt match bpf "/pin/known_out" meta mark set meta mark & 0xffffafff | 0x00000800 return
  ip daddr 169.254.169.254 jump metadata_access
  ip6 daddr fd00:ec2::254 jump metadata_access
  ip saddr @strict4 fib daddr type local meta mark set meta mark & 0xffffafff | 0x00000800 return comment "the node itself, by a branch"
  ip6 saddr @strict6 fib daddr type local meta mark set meta mark & 0xffffafff | 0x00000800 return comment "the node itself, by a branch"
  ct direction reply meta mark set meta mark | 0x00000800 comment "a reply, as the program sees it"
  xt match bpf "/pin/forward" meta mark set meta mark & 0xffffafff | 0x00000800 return
  counter drop comment "network policy"
policy_in
  xt match bpf "/pin/known_in" meta mark set meta mark & 0xffffefff | 0x00000800 return
  ip daddr @strict4 fib saddr type local meta mark set meta mark & 0xffffefff | 0x00000800 return comment "the node itself, by a branch"
  ip6 daddr @strict6 fib saddr type local meta mark set meta mark & 0xffffefff | 0x00000800 return comment "the node itself, by a branch"
  ct direction reply meta mark set meta mark | 0x00000800 comment "a reply, as the program sees it"
  xt match bpf "/pin/forward" meta mark set meta mark & 0xffffefff | 0x00000800 return
  counter drop comment "network policy"
policy_local
  xt match bpf "/pin/known_local" meta mark set meta mark & 0xffffefff | 0x00000800 return
  ct direction reply meta mark set meta mark | 0x00000800 comment "a reply, as the program sees it"
  xt match bpf "/pin/forward" meta mark set meta mark & 0xffffefff | 0x00000800 return
  counter drop comment "network policy"
`
	var without strings.Builder
	for line := range strings.Lines(want) {
		if !strings.Contains(line, "/pin/known_") {
			without.WriteString(line)
		}
	}
	for known, want := range map[bool]string{true: want, false: without.String()} {
		rules := Compile(Config{PrimaryLink: "eth0", Policy: Programs{Forward: "/pin/forward", Known: known}})
		var got strings.Builder
		for _, c := range rules.table(nftables.Inet).Chains {
			if !strings.HasPrefix(c.Name, "policy_") {
				continue
			}
			got.WriteString(c.Name + "\n")
			for _, r := range c.Rules {
				got.WriteString("  " + r.String() + "\n")
			}
		}
		if diff := cmp.Diff(want, got.String()); diff != "" {
			t.Errorf("known programs %v (-want +got):\n%s", known, diff)
		}
	}
}

func TestTheElementsOfAStrictPodAreThoseOfBothFamilies(t *testing.T) {
	e := endpoint.Endpoint{
		Link: "vlanddd", PodMAC: macA, Addresses: endpoint.AddressesOf(addr("10.0.0.90"), addr("fd10::90")),
		Attachment: endpoint.Attachment{Kind: endpoint.Branch, Branch: endpoint.BranchLink{Mode: endpoint.Strict}},
	}
	sets := func(e endpoint.Endpoint) string {
		var names []string
		for _, element := range PodOf(e, false).Elements() {
			names = append(names, string(element.Family)+" "+element.Set)
		}
		return strings.Join(names, ", ")
	}
	if got, want := sets(e), "inet sources4, inet strict4, arp sources, inet strict6, inet sources6, inet sources6"; got != want {
		t.Errorf("strict: %s, want %s", got, want)
	}
	e.Attachment.Branch.Mode = endpoint.Standard
	if got, want := sets(e), "inet sources4, inet pods4, arp sources, inet sources6, inet sources6"; got != want {
		t.Errorf("standard: %s, want %s", got, want)
	}
	if hostnet.IsStrict(e) {
		t.Error("a standard pod counts as strict")
	}
}
