package hostnet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

func TestTheSettingsOfANodeHaveValuesAndReasons(t *testing.T) {
	text := func(settings []Sysctl) string {
		var b strings.Builder
		for _, s := range settings {
			if s.Why == "" {
				t.Errorf("%s has no reason", s)
			}
			fmt.Fprintf(&b, "%s at least %v, optional %v\n", s, s.AtLeast, s.Optional)
		}
		return b.String()
	}
	list := func(families ...vpc.Family) string { return text(Sysctls("ens5", families)) }
	const ipv4 = `sysctl net/ipv4/ip_forward=1 at least false, optional false
sysctl net/ipv4/conf/ens5/rp_filter=2 at least false, optional false
sysctl net/ipv4/neigh/default/gc_thresh1=1024 at least true, optional true
sysctl net/ipv4/neigh/default/gc_thresh2=8192 at least true, optional true
sysctl net/ipv4/neigh/default/gc_thresh3=16384 at least true, optional true
`
	if diff := cmp.Diff(ipv4, list(vpc.IPv4)); diff != "" {
		t.Errorf("IPv4 (-want +got):\n%s", diff)
	}
	const ipv6 = `sysctl net/ipv6/conf/all/disable_ipv6=0 at least false, optional false
sysctl net/ipv6/conf/ens5/accept_ra=2 at least false, optional false
sysctl net/ipv6/conf/all/forwarding=1 at least false, optional false
`
	if diff := cmp.Diff(ipv4+ipv6, list(vpc.IPv4, vpc.IPv6)); diff != "" {
		t.Errorf("both families (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(strings.ReplaceAll(ipv6, "optional false", "optional true"), text(BranchSysctls("ens5"))); diff != "" {
		t.Errorf("with branches (-want +got):\n%s", diff)
	}
}

func TestARemedyNamesASettingAsSysctlReadsIt(t *testing.T) {
	for want, s := range map[string]Sysctl{
		"sysctl -w net.ipv4.conf.eth0.forwarding=1":     Forwarding("eth0"),
		"sysctl -w net/ipv4/conf/eth0.100/forwarding=1": Forwarding("eth0.100"),
	} {
		if got := s.Remedy(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if s.Why == "" {
			t.Errorf("%s has no reason", s)
		}
	}
}
