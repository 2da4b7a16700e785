// Package testrun has the kernel judge connections by the programs of network policy, without a
// packet being sent (BPF_PROG_TEST_RUN), of what core/policy's engine compiles and control/policy
// writes. Tests compare its answers with those of policy.Evaluate and of other models.
//
// It touches a bpffs in a directory of its own, which is gone after the test. It needs root.
package testrun

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/labels"

	control "github.com/trunkline/trunkline/internal/control/policy"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/bpf"
)

// Kernel is a datapath with the policies of a cluster, in which every pod with an address of its
// own is an endpoint. The programs and the maps stay while clusters follow one another.
type Kernel struct {
	*bpf.Datapath
	// Engine has the policies, namespaces and pods of the cluster.
	Engine *policy.Engine

	forward *ebpf.Program
	ids     map[policy.PodRef]endpoint.ID // also of pods of earlier clusters
	before  policy.Cluster
	sent    uint16 // packets, for their source ports
}

// New opens a datapath with empty maps, until the test ends. The engine's tables have limits.
func New(t testing.TB, limits policy.Limits) *Kernel {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if unix.Geteuid() != 0 {
		t.Fatal("BPF needs root: run this test as root")
	}
	dir := t.TempDir()
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	d, _, err := bpf.Open(bpf.Options{BPFFS: dir, Dir: "tl-test", Log: slog.New(slog.DiscardHandler), Sizes: map[string]uint32{"tl_connections": 1 << 12}})
	must(err)
	t.Cleanup(func() { must(d.Close()) })
	fd, _, err := d.Forward()
	must(err)
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(err)
	forward, err := ebpf.NewProgramFromFD(own)
	must(err)
	t.Cleanup(func() { must(forward.Close()) })
	return &Kernel{
		Datapath: d, Engine: policy.NewEngine(limits), forward: forward,
		ids: map[policy.PodRef]endpoint.ID{}, before: policy.Cluster{Namespaces: map[string]labels.Set{}},
	}
}

// Set puts the policies of a cluster in force. What the last one had and this one has not is
// removed in the same change.
func (k *Kernel) Set(c *policy.Cluster) error {
	k.forget(c)
	for name, set := range c.Namespaces {
		k.Engine.SetNamespace(name, set)
	}
	for _, p := range c.Pods {
		k.Engine.SetPod(p)
	}
	for _, p := range c.Policies {
		k.Engine.SetPolicy(p)
	}
	for _, p := range k.before.Pods {
		for _, a := range own(p) {
			if err := k.Maps.Addresses.Delete(bpf.AddressOf(a)); err != nil {
				return err
			}
		}
	}
	for _, p := range c.Pods {
		if len(own(p)) == 0 {
			continue
		}
		id := k.ID(p.Ref())
		for _, a := range own(p) {
			if err := k.Maps.Addresses.Put(bpf.AddressOf(a), uint32(id)); err != nil {
				return err
			}
		}
		k.Engine.SetEndpoint(id, p.Ref())
	}
	k.before = *c
	return control.Write(k.Datapath, k.Engine.Commit())
}

// own are the addresses that a pod does not share with its node.
func own(p policy.Pod) []netip.Addr {
	if p.HostNetwork {
		return nil
	}
	return p.Addresses
}

// forget removes from the engine what the last cluster had and this one has not.
func (k *Kernel) forget(c *policy.Cluster) {
	for _, p := range k.before.Policies {
		k.Engine.DeletePolicy(p.Ref)
	}
	for _, p := range k.before.Pods {
		still := c.Pod(p.Ref())
		if still == nil {
			k.Engine.DeletePod(p.Ref())
		}
		if len(own(p)) > 0 && (still == nil || len(own(*still)) == 0) {
			k.Engine.DeleteEndpoint(k.ID(p.Ref()))
		}
	}
	for name := range k.before.Namespaces {
		if _, still := c.Namespaces[name]; !still {
			k.Engine.DeleteNamespace(name)
		}
	}
}

// ID is the number of a pod's endpoint, the same in every cluster.
func (k *Kernel) ID(ref policy.PodRef) endpoint.ID {
	if k.ids[ref] == 0 {
		k.ids[ref] = endpoint.ID(len(k.ids) + 1)
	}
	return k.ids[ref]
}

// Answer is what the kernel decides about a connection.
type Answer struct {
	Allowed         bool // by the program that judges packets in the forward hook, for both ends
	Egress, Ingress bool // by one end each; true for an end that is no endpoint
}

// marked is the beginning of struct __sk_buff.
type marked struct {
	_    [2]uint32
	Mark uint32
}

// Judge asks the programs about the packet that opens a connection. A packet of an endpoint has the
// mark of those that came by a pod's link.
func (k *Kernel) Judge(f policy.Flow) (a Answer, err error) {
	const least, ports = 1024, 60_000
	k.sent = (k.sent + 1) % ports // another connection than the last ones
	packet := bpf.OpeningPacket(netip.AddrPortFrom(f.Source, least+k.sent), netip.AddrPortFrom(f.Destination, f.Port), uint8(f.Protocol))
	_, isEndpoint, err := k.Maps.Addresses.Get(bpf.AddressOf(f.Source))
	if err != nil {
		return a, err
	}
	in := marked{}
	if isEndpoint {
		in.Mark = hostnet.MarkPending
	}
	verdict, err := k.forward.Run(&ebpf.RunOptions{Data: packet, Context: in})
	if err != nil {
		return a, fmt.Errorf("judge %s: %w", f, err)
	}
	a.Allowed = verdict == 1
	for _, end := range []struct {
		of        netip.Addr
		direction bpf.Direction
		allowed   *bool
	}{{f.Source, bpf.Egress, &a.Egress}, {f.Destination, bpf.Ingress, &a.Ingress}} {
		*end.allowed = true
		id, found, err := k.Maps.Addresses.Get(bpf.AddressOf(end.of))
		if err != nil {
			return a, err
		}
		if !found {
			continue
		}
		j, err := k.Datapath.Judge(bpf.Question{Endpoint: endpoint.ID(id), Direction: end.direction, Packet: packet})
		if err != nil {
			return a, err
		}
		*end.allowed = j.Allowed
	}
	return a, nil
}

// Asked reports whether the kernel judges what a decision of Evaluate is about: packets between a
// pod and its node do not pass the forward hook, and those of a pod to itself are allowed there
// before its policies are asked.
func Asked(d policy.Decision) bool {
	return d.Basis != policy.ResidentNode && d.Basis != policy.OwnAddress
}

// Compare returns in which respect the kernel's answer differs from a verdict; empty if in none.
func (a Answer) Compare(v policy.Verdict) string {
	switch {
	case Asked(v.Egress) && a.Egress != v.Egress.Allowed:
		return fmt.Sprintf("egress: the kernel allows %v, Evaluate: %s", a.Egress, v.Egress)
	case Asked(v.Ingress) && a.Ingress != v.Ingress.Allowed:
		return fmt.Sprintf("ingress: the kernel allows %v, Evaluate: %s", a.Ingress, v.Ingress)
	case v.Egress.Basis != policy.ResidentNode && v.Ingress.Basis != policy.ResidentNode && a.Allowed != v.Allowed():
		return fmt.Sprintf("both ends: the kernel allows %v, Evaluate: %s, %s", a.Allowed, v.Egress, v.Ingress)
	}
	return ""
}
