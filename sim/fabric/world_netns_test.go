//go:build netns

package fabric

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/test/testns"
)

// The world of these tests: two subnets of 10.0.0.0/16 and fd10::/56, one group
// that allows everything.
const (
	subnetA vpc.SubnetID        = "subnet-a" // 10.0.0.0/20, fd10::/64
	subnetB vpc.SubnetID        = "subnet-b" // 10.0.16.0/20, fd10:0:0:1::/64
	open    vpc.SecurityGroupID = "sg-open"
)

const (
	// replyTimeout is how long a test waits for an expected packet.
	replyTimeout = 30 * time.Second
	// silence is how long a test waits for a packet that must not arrive. Every use has
	// a positive control on the same path.
	silence = 300 * time.Millisecond
)

// world is a fabric with the State that it is to have, and the guests of its ports.
type world struct {
	expect
	fabric *Fabric
	state  State
	guests map[vpc.ENIID]*guest
}

func newWorld(t testing.TB) *world {
	t.Helper()
	unique := testns.New(t, "seq") // reserves a unique name
	f, err := Open(unique.Name+"-vpc", Options{Internet: unique.Name + "-net"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Destroy(); err != nil {
			t.Errorf("destroy: %v", err)
		}
		for _, name := range []string{f.Name(), f.InternetName()} {
			if _, err := os.Stat("/run/netns/" + name); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("namespace %s is left over: %v", name, err)
			}
		}
	})
	everything := []Rule{
		{Protocol: -1, From: -1, To: -1, Peer: netip.MustParsePrefix("0.0.0.0/0")},
		{Protocol: -1, From: -1, To: -1, Peer: netip.MustParsePrefix("::/0")},
	}
	return &world{expect: expect{t}, fabric: f, guests: map[vpc.ENIID]*guest{}, state: State{
		CIDRs: prefixes("10.0.0.0/16", "fd10::/56"),
		Subnets: []Subnet{
			{ID: subnetA, Prefixes: prefixes("10.0.0.0/20", "fd10::/64")},
			{ID: subnetB, Prefixes: prefixes("10.0.16.0/20", "fd10:0:0:1::/64")},
		},
		Groups: []Group{{ID: open, Ingress: everything, Egress: everything}},
	}}
}

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(texts))
	for n, text := range texts {
		out[n] = netip.MustParsePrefix(text)
	}
	return out
}

func addrs(texts ...string) []netip.Addr {
	out := make([]netip.Addr, len(texts))
	for n, text := range texts {
		out[n] = netip.MustParseAddr(text)
	}
	return out
}

// plug adds an instance with one interface and its addresses, applies, and
// configures the guest as an instance does: the subnet on-link, a default route by the
// gateway.
func (w *world) plug(id vpc.ENIID, addresses ...string) *guest {
	w.t.Helper()
	g := newGuest(w.t, string(id))
	w.guests[id] = g
	w.state.Ports = append(w.state.Ports, w.port(id, g.Name, addresses...))
	w.apply()
	w.configure(id)
	return g
}

// host is a namespace of the fabric's: its own, or that of the outside host.
func (w *world) host(name string) *host {
	return &host{w.expect, &testns.NS{Name: name, Path: netns.Path(name)}}
}

func (w *world) port(id vpc.ENIID, guest string, addresses ...string) Port {
	p := Port{
		ID: id, Key: PortKey{ENI: id}, Subnet: subnetA, MAC: vpc.MAC{2, 0xaa, 0, 0, 0, byte(len(w.state.Ports) + 1)},
		Addresses: addrs(addresses...), Groups: []vpc.SecurityGroupID{open}, SourceDestCheck: true,
		Guest: guest, Device: "eth0",
	}
	for _, subnet := range w.state.Subnets {
		if subnet.Prefixes[0].Contains(p.Addresses[0]) {
			p.Subnet = subnet.ID
		}
	}
	return p
}

func (w *world) apply() {
	w.t.Helper()
	if err := w.fabric.Apply(w.t.Context(), w.state); err != nil {
		w.t.Fatal(err)
	}
}

// at is the port in the state, to be changed before the next apply.
func (w *world) at(id vpc.ENIID) *Port {
	w.t.Helper()
	for n := range w.state.Ports {
		if w.state.Ports[n].ID == id {
			return &w.state.Ports[n]
		}
	}
	w.t.Fatalf("no port %s", id)
	return nil
}

// configure configures the guest's end of a port and waits until its link carries.
func (w *world) configure(id vpc.ENIID) {
	w.t.Helper()
	p := w.at(id)
	w.guests[id].configure(*p, w.subnetOf(p))
	w.carry(id)
}

// carry waits until the fabric's end is operationally up: the kernel starts its queue
// shortly after the guest sets its end up.
func (w *world) carry(id vpc.ENIID) {
	w.t.Helper()
	w.eventually("link of "+string(id)+" carries", func() bool {
		l, err := w.fabric.link.LinkByName(deviceName(id))
		w.must(err)
		return l.Attrs().OperState == netlink.OperUp
	})
}

func (w *world) subnetOf(p *Port) Subnet {
	for _, subnet := range w.state.Subnets {
		if subnet.ID == p.Subnet {
			return subnet
		}
	}
	w.t.Fatalf("no subnet %s", p.Subnet)
	return Subnet{}
}

// nft runs nft(8) in the fabric's namespace, as another program would.
func nft(w *world, script string) string {
	w.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", w.fabric.Name(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("nft: %v: %s\n%s", err, out, script)
	}
	return string(out)
}

// drops of one port, now.
func (w *world) drops(id vpc.ENIID) Drops {
	w.t.Helper()
	all, err := w.fabric.Counters()
	w.must(err)
	return all[id]
}
