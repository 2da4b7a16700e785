package cloud_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// oddSpec is an account with objects that few accounts have: an IPv6-only subnet, an
// instance with several network cards and EFAs, and interfaces of AWS's services.
func oddSpec() cloud.Spec {
	spec := cloud.Spec{
		Region: "us-west-2", Account: "111122223333", Seed: 3,
		VPC: cloud.VPCSpec{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, CIDR6: netip.MustParsePrefix("2001:db8::/56")},
		Subnets: []cloud.SubnetSpec{
			{Name: "a", Zone: "us-west-2a", CIDR: netip.MustParsePrefix("10.0.0.0/24")},
			{Name: "six", Zone: "us-west-2a", CIDR6: netip.MustParsePrefix("2001:db8:0:1::/64")},
		},
		Instances: []cloud.InstanceSpec{{Name: "gpu", Type: "p5.48xlarge", Subnet: "a", PrimaryType: vpc.TypeEFA}},
		Hosts: []cloud.HostSpec{
			{Name: "nat", Subnet: "a", Type: "nat_gateway"}, {Name: "lambda", Subnet: "a", Type: "lambda", Operator: "lambda.amazonaws.com"},
		},
	}
	for card := 1; card < 32; card++ {
		spec.Instances[0].Interfaces = append(spec.Instances[0].Interfaces, cloud.LaunchInterface{Card: card, Device: card % 2, Type: vpc.TypeEFAOnly})
	}
	return spec
}

func odd(t *testing.T, change func(*cloud.Spec)) (*cloud.Cloud, error) {
	t.Helper()
	spec := oddSpec()
	if change != nil {
		change(&spec)
	}
	return cloud.New(spec, cloud.Options{Instant: true})
}

func TestInterfacesOfAnIPv6OnlySubnetHaveNoIPv4Address(t *testing.T) {
	c, err := odd(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := c.State().SubnetNamed("six")
	if free := c.State().FreeIPv4(n); free != 0 {
		t.Errorf("%d free IPv4 addresses", free)
	}
	i, err := c.CreateInterface(cloud.NewInterface{Subnet: n.ID})
	if err != nil || len(i.IPv4.Addresses) != 0 || len(i.IPv6.Addresses) != 1 || i.PrimaryIPv4().IsValid() {
		t.Fatalf("%+v, %v: want one IPv6 address", i, err)
	}
	for name, w := range map[string]cloud.NewInterface{
		"a primary address":   {Subnet: n.ID, Primary: netip.MustParseAddr("10.0.0.9")},
		"secondary addresses": {Subnet: n.ID, IPv4: cloud.Want{Count: 1}},
	} {
		if _, err := c.CreateInterface(w); err == nil {
			t.Errorf("%s: created", name)
		}
	}
	if _, err := c.Interface(i.ID).AssignIPv4(cloud.Want{Count: 1}); err == nil {
		t.Error("an IPv4 address was assigned")
	}
}

func TestDeviceIndexesAndLimitsAreOfEachCard(t *testing.T) {
	c, err := odd(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	gpu := c.State().InstanceNamed("gpu")
	if p := c.State().Primary(gpu.ID); p == nil || p.Type != vpc.TypeEFA || p.Attachment.NetworkCard != 0 || !p.PrimaryIPv4().IsValid() {
		t.Fatalf("the primary interface is %+v", p)
	}
	attach := func(device, card int) error {
		i, err := c.CreateInterface(cloud.NewInterface{Subnet: gpu.Subnet})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Interface(i.ID).Attach(gpu.ID, device, card)
		return err
	}
	if err := attach(1, 0); err != nil {
		t.Errorf("device 1 of card 0, beside device 1 of other cards: %v", err)
	}
	if err := attach(2, 0); err == nil || !strings.Contains(err.Error(), "AttachmentLimitExceeded") {
		t.Errorf("a third interface of card 0: %v", err)
	}
	if err := attach(1, 2); err != nil {
		t.Errorf("device 1 of card 2, which has device 0: %v", err)
	}
	if err := attach(0, 32); err == nil {
		t.Error("attached to a card that the type does not have")
	}
	for _, i := range c.State().InterfacesOf(gpu.ID) {
		err := c.Detach(i.Attachment.ID)
		if (err != nil) != i.Attachment.Primary() {
			t.Errorf("detach device %d of card %d: %v", i.Attachment.DeviceIndex, i.Attachment.NetworkCard, err)
		}
	}
}

func TestEFAsAreAttachedAtLaunchOnly(t *testing.T) {
	c, err := odd(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	gpu := c.State().InstanceNamed("gpu")
	i, err := c.CreateInterface(cloud.NewInterface{Subnet: gpu.Subnet, Type: vpc.TypeEFA})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Interface(i.ID).Attach(gpu.ID, 1, 0); err == nil || !strings.Contains(err.Error(), "must be stopped") {
		t.Errorf("attach an EFA to a running instance: %v", err)
	}
	if _, err := c.CreateInterface(cloud.NewInterface{Subnet: gpu.Subnet, Type: vpc.TypeEFAOnly, IPv4: cloud.Want{Count: 1}}); err == nil {
		t.Error("an EFA-only interface has an IPv4 address")
	}
	for name, change := range map[string]func(*cloud.Spec){
		"an EFA of a type without":    func(s *cloud.Spec) { s.Instances[0].Type, s.Instances[0].Interfaces = "m5.xlarge", nil },
		"more EFAs than the type has": func(s *cloud.Spec) { s.Instances[0].Type = "trn1.32xlarge" },
		"a second EFA of a card": func(s *cloud.Spec) {
			s.Instances[0].Interfaces = []cloud.LaunchInterface{{Card: 0, Device: 1, Type: vpc.TypeEFAOnly}}
		},
		"an EFA-only primary": func(s *cloud.Spec) { s.Instances[0].PrimaryType = vpc.TypeEFAOnly },
	} {
		if _, err := odd(t, change); err == nil {
			t.Errorf("%s: launched", name)
		}
	}
}

func TestInterfacesOfServicesAreNotTheUsersToChange(t *testing.T) {
	c, err := odd(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]vpc.InterfaceType{"nat": "nat_gateway", "lambda": "lambda"} {
		i := c.State().HostInterface(name)
		if i == nil || i.Type != want || !i.Requester.Managed || i.Attachment.Status != cloud.Attached || i.Attachment.Instance != "" {
			t.Fatalf("%s: %+v", name, i)
		}
		if err := c.Interface(i.ID).SetDescription("mine"); err == nil {
			t.Errorf("%s: changed", name)
		}
	}
}
