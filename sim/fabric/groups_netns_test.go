//go:build netns

package fabric

import (
	"net/netip"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

const (
	clients vpc.SecurityGroupID = "sg-clients"
	servers vpc.SecurityGroupID = "sg-servers"
)

// withGroups is a world with a client and a server in the given groups. The server listens on
// UDP and TCP 7000 and 7001.
func withGroups(t *testing.T, client, server Group) *world {
	t.Helper()
	w := newWorld(t)
	client.ID, server.ID = clients, servers
	w.state.Groups = append(w.state.Groups, client, server)
	c := w.plug("eni-c", "10.0.0.10", "fd10::10")
	s := w.plug("eni-s", "10.0.16.20", "fd10:0:0:1::20")
	w.at("eni-c").Groups = []vpc.SecurityGroupID{clients}
	w.at("eni-s").Groups = []vpc.SecurityGroupID{servers}
	w.apply()
	for _, a := range []string{"10.0.16.20", "[fd10:0:0:1::20]"} {
		for _, port := range []string{":7000", ":7001"} {
			s.serveUDP(a + port)
			s.serveTCP(a + port)
		}
	}
	c.serveUDP("10.0.0.10:7000")
	return w
}

func (w *world) group(id vpc.SecurityGroupID) *Group {
	w.t.Helper()
	for n := range w.state.Groups {
		if w.state.Groups[n].ID == id {
			return &w.state.Groups[n]
		}
	}
	w.t.Fatalf("no group %s", id)
	return nil
}

func udp(from, to int, peer string) Rule {
	return Rule{Protocol: 17, From: from, To: to, Peer: netip.MustParsePrefix(peer)}
}

func tcp(from, to int, peer string) Rule {
	return Rule{Protocol: 6, From: from, To: to, Peer: netip.MustParsePrefix(peer)}
}

func TestAGroupWithoutRulesAllowsNoTraffic(t *testing.T) {
	w := withGroups(t, Group{}, Group{Ingress: []Rule{udp(7000, 7000, "10.0.0.0/16")}})
	c := w.guests["eni-c"]
	c.silent("", "10.0.16.20:7000")
	if got := w.drops("eni-c").Egress; got == 0 {
		t.Error("the drop was not counted at the sender's egress")
	}
	w.group(clients).Egress = []Rule{udp(7000, 7001, "0.0.0.0/0")}
	w.apply()
	c.reaches("", "10.0.16.20:7000") // control: the sender's egress was the cause
	c.silent("", "10.0.16.20:7001")  // allowed out, not in
	if got := w.drops("eni-s").Ingress; got == 0 {
		t.Error("the drop was not counted at the receiver's ingress")
	}
}

func TestARepliedFlowPassesWithoutARuleForTheReply(t *testing.T) {
	w := withGroups(t, Group{Egress: []Rule{udp(7000, 7000, "10.0.16.0/20")}}, Group{Ingress: []Rule{udp(7000, 7000, "10.0.0.0/20")}})
	w.guests["eni-c"].reaches("", "10.0.16.20:7000")
	w.guests["eni-s"].silent("", "10.0.0.10:7000") // no rule allows the other direction
}

func TestARuleMatchesOnlyItsCIDRProtocolAndPorts(t *testing.T) {
	all := []Rule{{Protocol: -1, From: -1, To: -1, Peer: prefixes("0.0.0.0/0")[0]}}
	w := withGroups(t, Group{Egress: all}, Group{})
	c := w.guests["eni-c"]
	for _, try := range []struct {
		name   string
		rule   Rule
		passes bool
	}{
		{"the port", udp(7000, 7000, "10.0.0.0/16"), true},
		{"a range that holds the port", udp(6999, 7001, "10.0.0.10/32"), true},
		{"every port", udp(-1, -1, "0.0.0.0/0"), true},
		{"ports below", udp(1, 6999, "10.0.0.0/16"), false},
		{"ports above", udp(7001, 65535, "10.0.0.0/16"), false},
		{"another protocol", tcp(7000, 7000, "10.0.0.0/16"), false},
		{"another range of addresses", udp(7000, 7000, "10.0.0.11/32"), false},
		{"IPv6 alone", udp(7000, 7000, "::/0"), false},
		{"every protocol", Rule{Protocol: -1, From: -1, To: -1, Peer: prefixes("10.0.0.8/29")[0]}, true},
	} {
		w.group(servers).Ingress = []Rule{try.rule}
		w.apply()
		t.Run(try.name, func(*testing.T) {
			if try.passes {
				c.reaches("", "10.0.16.20:7000")
			} else {
				c.silent("", "10.0.16.20:7000")
			}
		})
	}
}

func TestAnICMPRuleMatchesTypeAndCode(t *testing.T) {
	all := []Rule{
		{Protocol: -1, From: -1, To: -1, Peer: prefixes("0.0.0.0/0")[0]},
		{Protocol: -1, From: -1, To: -1, Peer: prefixes("::/0")[0]},
	}
	w := withGroups(t, Group{Egress: all}, Group{})
	for _, try := range []struct {
		name           string
		protocol, kind int
		code           int
		peer, to       string
		passes         bool
	}{
		{"echo of any code", 1, 8, -1, "10.0.0.0/16", "10.0.16.20", true},
		{"echo of code 0", 1, 8, 0, "10.0.0.0/16", "10.0.16.20", true},
		{"echo of another code", 1, 8, 1, "10.0.0.0/16", "10.0.16.20", false},
		{"another type", 1, 13, -1, "10.0.0.0/16", "10.0.16.20", false},
		{"every type", 1, -1, -1, "10.0.0.0/16", "10.0.16.20", true},
		{"ICMPv6 echo", 58, 128, -1, "fd10::/56", "fd10:0:0:1::20", true},
		{"ICMP for IPv6", 1, -1, -1, "fd10::/56", "fd10:0:0:1::20", false},
	} {
		w.group(servers).Ingress = []Rule{{Protocol: try.protocol, From: try.kind, To: try.code, Peer: prefixes(try.peer)[0]}}
		w.apply()
		t.Run(try.name, func(t *testing.T) {
			wait := silence
			if try.passes {
				wait = replyTimeout
			}
			if err := w.guests["eni-c"].ping("", try.to, wait); (err == nil) != try.passes {
				t.Errorf("ping: %v, want it to pass: %v", err, try.passes)
			}
		})
	}
}

func TestAReferenceToAGroupMeansTheAddressesOfItsPorts(t *testing.T) {
	fromClients := Rule{Protocol: 17, From: 7000, To: 7000, Group: clients}
	toServers := Rule{Protocol: 17, From: 7000, To: 7000, Group: servers}
	w := withGroups(t, Group{Egress: []Rule{toServers}}, Group{Ingress: []Rule{fromClients}})
	c := w.guests["eni-c"]
	c.reaches("10.0.0.10", "10.0.16.20:7000")
	c.reaches("fd10::10", "[fd10:0:0:1::20]:7000")

	// A port in a group that allows all egress is not a member of the client group.
	other := w.plug("eni-x", "10.0.0.11")
	other.silent("", "10.0.16.20:7000")
	w.at("eni-x").Groups = []vpc.SecurityGroupID{open, clients}
	w.apply()
	other.reaches("", "10.0.16.20:7000") // any of several groups allows

	// A delegated prefix is part of the group as well.
	w.at("eni-c").Prefixes = prefixes("10.0.1.16/28")
	w.apply()
	c.assign("10.0.1.17")
	c.reaches("10.0.1.17", "10.0.16.20:7000")

	// And a port that leaves the group is dropped.
	w.at("eni-x").Groups = []vpc.SecurityGroupID{open}
	w.apply()
	other.silent("", "10.0.16.20:7000")
}

func TestARevokedRuleKeepsTrackedFlowsAndStopsNewOnes(t *testing.T) {
	w := withGroups(t, Group{Egress: []Rule{tcp(0, 65535, "0.0.0.0/0")}}, Group{Ingress: []Rule{tcp(7000, 7000, "10.0.0.0/16")}})
	c, err := w.guests["eni-c"].connect("10.0.16.20:7000", replyTimeout)
	w.must(err)
	defer c.Close()
	w.must(echo(c, "before", replyTimeout))
	w.group(servers).Ingress = nil
	w.apply()
	w.must(echo(c, "after", replyTimeout))
	if fresh, err := w.guests["eni-c"].connect("10.0.16.20:7000", silence); err == nil {
		fresh.Close()
		t.Error("a new connection passed after the rule was revoked")
	}
}
