package hotplug

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func eni(card, device int, addresses ...string) Interface {
	i := Interface{
		Name: "eth" + string(rune('0'+device)), MAC: vpc.MAC{2, 0, 0, 0, 1, byte(device)}, Card: card, Device: device,
		Subnet: netip.MustParsePrefix("10.0.0.0/19"),
	}
	for _, a := range addresses {
		i.Addresses = append(i.Addresses, netip.MustParseAddr(a))
	}
	return i
}

// summary is a configuration without its comments and empty lines.
func summary(text string) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(text, "\n\n", " ; ")), " ")
}

func TestNodeadmConfiguresThePrimaryInterfaceWithoutATable(t *testing.T) {
	i := eni(0, 0, "10.0.0.11", "10.0.0.12")
	c := ofNodeadm(i)
	want := "[Match] MACAddress=02:00:00:00:01:00 ; [Link] MTUBytes=9001 ; [Network] LLMNR=no ; " +
		"[Address] Address=10.0.0.11/19 RouteMetric=512 ; [Route] Gateway=10.0.0.1 Metric=512 PreferredSource=10.0.0.11 Protocol=16"
	if diff := cmp.Diff(want, summary(c.text(i))); diff != "" || c.file != "70-eks-eth0.network" {
		t.Errorf("%s (-want +got):\n%s", c.file, diff)
	}
}

func TestNodeadmGivesOtherInterfacesATableOfTheirCardAndDevice(t *testing.T) {
	i := eni(1, 1, "10.0.0.21", "10.0.0.22")
	c := ofNodeadm(i)
	want := "[Match] MACAddress=02:00:00:00:01:01 ; [Link] MTUBytes=9001 ; [Network] LLMNR=no ; " +
		"[Address] Address=10.0.0.21/19 RouteMetric=613 ; [Route] Gateway=10.0.0.1 Metric=613 PreferredSource=10.0.0.21 Protocol=16 ; " +
		"[Route] Gateway=10.0.0.1 Table=10101 ; [RoutingPolicyRule] From=10.0.0.21 Table=10101 Priority=32765"
	if diff := cmp.Diff(want, summary(c.text(i))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCloudInitConfiguresAllAddressesOfAllInterfaces(t *testing.T) {
	first, second := eni(0, 0, "10.0.0.11", "10.0.0.12"), eni(0, 1, "10.0.0.21", "10.0.0.22")
	got := ofCloudInit([]Interface{second, first})
	for name, want := range map[string]string{
		"eth0": "[Match] MACAddress=02:00:00:00:01:00 ; [Link] MTUBytes=9001 ; [Network] LLMNR=no ; " +
			"[Address] Address=10.0.0.11/19 RouteMetric=100 ; [Address] Address=10.0.0.12/19 RouteMetric=100 ; " +
			"[Route] Gateway=10.0.0.1 Metric=100 PreferredSource=10.0.0.11 Protocol=16",
		"eth1": "[Match] MACAddress=02:00:00:00:01:01 ; [Link] MTUBytes=9001 ; [Network] LLMNR=no ; " +
			"[Address] Address=10.0.0.21/19 RouteMetric=200 ; [Address] Address=10.0.0.22/19 RouteMetric=200 ; " +
			"[Route] Gateway=10.0.0.1 Metric=200 PreferredSource=10.0.0.21 Protocol=16 ; " +
			"[Route] Gateway=10.0.0.1 Table=101 ; [Route] Destination=10.0.0.0/19 Scope=link Table=101 ; " +
			"[RoutingPolicyRule] From=10.0.0.21 Table=101 ; [RoutingPolicyRule] From=10.0.0.22 Table=101",
	} {
		i := map[string]Interface{"eth0": first, "eth1": second}[name]
		if diff := cmp.Diff(want, summary(got[name].text(i))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
