package awsnode

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/hex"
	"net"
	"net/netip"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Pod is a sandbox that AWS's plugin wires.
type Pod struct {
	Namespace, Name string
	NetNS           string // name of the sandbox's network namespace in /run/netns
	IfName          string // eth0
	Address         netip.Addr
	Table           string // route table of the interface that has the address; "main" for the primary one
}

// gateway is the address by which pods reach the node. Source:
// cmd/routed-eni-cni-plugin/driver/driver.go.
const gateway = "169.254.1.1"

// Link returns the name of the pod's link on the node. Source: GeneratePodHostVethName in
// pkg/networkutils/names.go.
func (p Pod) Link() string { return "eni" + p.hash() }

func (p Pod) hash() string {
	sum := sha1.Sum([]byte(p.Namespace + "." + p.Name))
	return hex.EncodeToString(sum[:])[:11]
}

// Wire connects a pod to the node: its link, its address, and the node's route and rules.
// Source: SetupPodNetwork in cmd/routed-eni-cni-plugin/driver/driver.go.
func (h Host) Wire(p Pod) error {
	host, inside := newMAC(), newMAC()
	if err := h.all([]step{
		{"link add %s address %s mtu %d type veth peer name %s address %s mtu %d netns %s", []any{p.Link(), host, vpc.MTU, p.IfName, inside, vpc.MTU, p.NetNS}},
		{"link set %s up", []any{p.Link()}},
	}); err != nil {
		return err
	}
	if err := (Host{NetNS: p.NetNS}).all([]step{
		{"link set %s up", []any{p.IfName}},
		{"route add %s dev %s scope link", []any{gateway, p.IfName}},
		{"address add %s/32 dev %s", []any{p.Address, p.IfName}},
		{"route add default via %s dev %s", []any{gateway, p.IfName}},
		{"neighbour add %s lladdr %s dev %s nud permanent", []any{gateway, host, p.IfName}},
	}); err != nil {
		return err
	}
	steps := []step{
		{"route replace %s dev %s scope link", []any{p.Address, p.Link()}},
		{"rule add pref %s to %s lookup %s", []any{ruleToPod, p.Address, tableMain}},
	}
	if p.Table != tableMain {
		steps = append(steps, step{"rule add pref %s from %s lookup %s", []any{ruleFromPod, p.Address, p.Table}})
	}
	return h.all(steps)
}

// Unwire removes a pod's rules and its link, with the route by it. Source: TeardownPodNetwork
// there.
func (h Host) Unwire(p Pod) error {
	steps := []step{{"rule delete pref %s to %s lookup %s", []any{ruleToPod, p.Address, tableMain}}}
	if p.Table != tableMain {
		steps = append(steps, step{"rule delete pref %s from %s lookup %s", []any{ruleFromPod, p.Address, p.Table}})
	}
	return h.all(append(steps, step{"link delete %s", []any{p.Link()}}))
}

// prune removes the rules of an address, of an allocation that was dropped at a start. Source:
// PruneStaleAllocations in pkg/ipamd/datastore/data_store.go.
func (h Host) prune(address netip.Addr) error {
	return h.all([]step{
		{"rule delete pref %s to %s lookup %s", []any{ruleToPod, address, tableMain}},
		{"rule delete pref %s from %s", []any{ruleFromPod, address}},
	})
}

// newMAC returns a random, locally administered address, as the plugin does.
func newMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails
	mac[0] = mac[0]&0xfe | 0x02
	return mac
}
