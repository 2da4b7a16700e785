package hostnet

import (
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

func TestOnlySettingsOfOneLinkAreSetByNetlink(t *testing.T) {
	for name, want := range map[string]struct {
		link    string
		devconf int
		ok      bool
	}{
		"net/ipv4/conf/ens5/rp_filter":      {"ens5", DevconfRPFilter, true},
		"net/ipv4/conf/eth0.100/forwarding": {"eth0.100", DevconfForwarding, true},
		"net/ipv4/conf/all/rp_filter":       {},
		"net/ipv4/conf/default/forwarding":  {},
		"net/ipv4/conf/ens5/accept_local":   {},
		"net/ipv6/conf/ens5/forwarding":     {},
		IPForward:                           {},
	} {
		link, devconf, ok := Sysctl{Name: name}.Device()
		if link != want.link || devconf != want.devconf || ok != want.ok {
			t.Errorf("%s: %q %d %v, want %+v", name, link, devconf, ok, want)
		}
	}
}

func TestTheAgentComparesTheSettingsWithoutWhichPacketsAreLost(t *testing.T) {
	names := func(list []Sysctl) (all string) {
		for _, s := range list {
			all += s.Name + " "
		}
		return all
	}
	if got := names(Required("ens5", []vpc.Family{vpc.IPv4})); got != "net/ipv4/ip_forward net/ipv4/conf/ens5/rp_filter " {
		t.Errorf("got %s", got)
	}
	if got := names(Required("", []vpc.Family{vpc.IPv4})); got != "net/ipv4/ip_forward " {
		t.Errorf("without a primary link: %s", got)
	}
}
