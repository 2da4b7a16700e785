package cloud_test

import (
	"testing"

	"github.com/trunkline/trunkline/sim/cloud"
)

func TestRoutesAndRulesHaveQuotas(t *testing.T) {
	s := spec()
	s.Quotas = cloud.Quotas{RoutesPerTable: 1, RulesPerGroup: 2}
	c, err := cloud.New(s, cloud.Options{Instant: true})
	if err != nil {
		t.Fatal(err)
	}
	table := cloud.Sorted(c.State().RouteTables)[0].ID
	to := cloud.RouteTarget{Gateway: c.State().Gateway}
	if err := c.RouteTable(table).CreateRoute(prefix("0.0.0.0/0"), to); err != nil {
		t.Fatal(err)
	}
	if err := c.RouteTable(table).CreateRoute(prefix("0.0.0.0/0"), to); err != nil {
		t.Fatalf("create the same route again: %v", err)
	}
	wantCode(t, c.RouteTable(table).CreateRoute(prefix("192.0.2.0/24"), to), "RouteLimitExceeded", "The maximum number of routes has been reached.")
	group := c.State().GroupNamed("node").ID
	rule := func(port int) cloud.Rule {
		return cloud.Rule{Protocol: 6, From: port, To: port, Peer: prefix("0.0.0.0/0")}
	}
	if _, err := c.Group(group).Authorize(cloud.Ingress, []cloud.Rule{rule(80), rule(81)}); err != nil {
		t.Fatal(err)
	}
	_, err = c.Group(group).Authorize(cloud.Ingress, []cloud.Rule{rule(82)})
	wantCode(t, err, "RulesPerSecurityGroupLimitExceeded", "The maximum number of rules per security group has been reached.")
	_, err = c.Group(group).Authorize(cloud.Ingress, []cloud.Rule{rule(80)})
	wantCode(t, err, "InvalidPermission.Duplicate", `the specified rule "peer: 0.0.0.0/0, TCP, from port: 80, to port: 80, ALLOW" already exists`)
	if _, err := c.Group(group).Revoke(cloud.Ingress, []cloud.Rule{rule(80)}); err != nil {
		t.Fatal(err)
	}
	_, err = c.Group(group).Revoke(cloud.Ingress, []cloud.Rule{rule(80)})
	wantCode(t, err, "InvalidPermission.NotFound", "The specified rule does not exist in this security group.")
}

func TestRouteInsideTheVPCMustBeAWholeSubnetToAnInterface(t *testing.T) {
	c := newCloud(t, cloud.Options{Instant: true})
	s := c.State()
	table := cloud.Sorted(s.RouteTables)[0].ID
	eni := cloud.RouteTarget{Interface: s.Primary(s.InstanceNamed("one").ID).ID}
	for dst, test := range map[string]struct {
		to      cloud.RouteTarget
		message string
	}{
		"10.0.2.0/24":             {eni, ""},
		"2600:1f14:abc:de00::/64": {cloud.RouteTarget{Instance: s.InstanceNamed("one").ID}, ""},
		"10.0.0.0/8":              {eni, ""}, // wider than the VPC
		"10.0.0.0/16":             {eni, "The destination CIDR block 10.0.0.0/16 is equal to the VPC's CIDR block 10.0.0.0/16."},
		"10.0.1.0/26":             {cloud.RouteTarget{Gateway: s.Gateway}, "Route target is not supported. This route only supports interface and instance targets."},
		"10.0.2.0/25":             {eni, "The destination CIDR block 10.0.2.0/25 is within the VPC's CIDR block 10.0.0.0/16 and is not that of a subnet."},
	} {
		err := c.RouteTable(table).CreateRoute(prefix(dst), test.to)
		if test.message == "" {
			if err != nil {
				t.Errorf("%s: %v", dst, err)
			}
			continue
		}
		wantCode(t, err, "InvalidParameterValue", test.message)
	}
}

func TestRulePortsAreCheckedByProtocol(t *testing.T) {
	c := newCloud(t, cloud.Options{Instant: true})
	group := c.State().GroupNamed("node").ID
	for _, test := range []struct {
		protocol, from, to int
		keptFrom, keptTo   int
		code, message      string
	}{
		{protocol: 6, from: 0, to: 65535, keptTo: 65535},
		{protocol: 6, from: -1, to: -1, code: "InvalidPermission.Malformed", message: "TCP/UDP port (-1) out of range"},
		{protocol: 17, from: 53, to: 65536, code: "InvalidPermission.Malformed", message: "TCP/UDP port (65536) out of range"},
		{protocol: 6, from: 81, to: 80, code: "InvalidParameterValue", message: "Invalid TCP/UDP port range (81:80)"},
		{protocol: 1, from: 8, to: -1, keptFrom: 8, keptTo: -1},
		{protocol: 1, from: -1, to: -1, keptFrom: -1, keptTo: -1},
		{protocol: 1, from: 300, to: 0, code: "InvalidPermission.Malformed", message: "ICMP type or code (300) out of range"},
		{protocol: 58, from: -1, to: 4, code: "InvalidPermission.Malformed", message: "ICMP code (4) must be -1 for all types"},
		// Rules of other protocols ignore the port range.
		{protocol: 132, from: 80, to: 81, keptFrom: -1, keptTo: -1},
		{protocol: -1, from: 80, to: 81, keptFrom: -1, keptTo: -1},
	} {
		rule := cloud.Rule{Protocol: test.protocol, From: test.from, To: test.to, Peer: prefix("192.0.2.0/24")}
		made, err := c.Group(group).Authorize(cloud.Ingress, []cloud.Rule{rule})
		if test.code != "" {
			wantCode(t, err, test.code, test.message)
			continue
		}
		if err != nil || made[0].From != test.keptFrom || made[0].To != test.keptTo {
			t.Errorf("%+v is stored as %+v (%v)", rule, made, err)
		}
		// The original rule matches the stored one.
		if _, err := c.Group(group).Revoke(cloud.Ingress, []cloud.Rule{rule}); err != nil {
			t.Errorf("revoke %+v: %v", rule, err)
		}
	}
	twice := cloud.Rule{Protocol: 6, From: 80, To: 80, Peer: prefix("192.0.2.0/24")}
	_, err := c.Group(group).Authorize(cloud.Ingress, []cloud.Rule{twice, twice})
	wantCode(t, err, "InvalidParameterValue", "The same permission must not appear multiple times")
}
