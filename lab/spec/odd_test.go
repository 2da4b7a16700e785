package spec

import (
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

const oddLab = `
vpc: {cidr6: "2001:db8::/56"}
subnets:
- {name: six, zone: us-west-2a, cidr6: "2001:db8:0:1::/64"}
- {name: a, zone: us-west-2a, cidr: 10.0.0.0/19}
nodes:
- type: p5.48xlarge
  primaryType: efa
  interfaces:
  - {card: 1, device: 0, type: efa-only}
  - {card: 1, device: 1, prefixes: 2, tags: {no-value: ""}}
`

func TestALabMayHaveIPv6OnlySubnetsAndSeveralNetworkCards(t *testing.T) {
	s, err := Parse([]byte(oddLab))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	n := r.Cloud.Instances[0]
	if r.Cloud.Subnets[0].CIDR.IsValid() || n.Subnet != "a" || r.Cloud.Hosts[0].Subnet != "a" {
		t.Errorf("the node is in %s, the control plane in %s", n.Subnet, r.Cloud.Hosts[0].Subnet)
	}
	if n.PrimaryType != vpc.TypeEFA || len(n.Interfaces) != 2 || n.Interfaces[0].Type != vpc.TypeEFAOnly || n.Interfaces[1].Prefixes != 2 {
		t.Errorf("%s, %+v", n.PrimaryType, n.Interfaces)
	}
	if r.Nodes[0].MaxPods != 100 {
		t.Errorf("%d pods, want EKS's 100", r.Nodes[0].MaxPods)
	}
	for change, want := range map[string]string{
		"primaryType: efa-only":     "primaryType: \"efa-only\": must be one of",
		"type: quantum":             "interfaces[0].type: \"quantum\": must be one of",
		"type: t3.medium":           "Network card index 1 is not valid",
		"subnet: six\n  type: m5.x": "is an IPv6-only subnet",
	} {
		broken := oddLab
		switch key, _, _ := strings.Cut(change, ":"); key {
		case "primaryType":
			broken = strings.Replace(broken, "primaryType: efa", change, 1)
		case "subnet":
			broken = strings.Replace(broken, "type: p5.48", change, 1)
		default:
			old := "type: efa-only"
			if strings.Contains(change, "t3") {
				old = "type: p5.48xlarge\n  primaryType: efa"
			}
			broken = strings.Replace(broken, old, change, 1)
		}
		s, err := Parse([]byte(broken))
		if err != nil {
			t.Fatalf("%s: %v", change, err)
		}
		if _, err := s.Resolve(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", change, err, want)
		}
	}
}
