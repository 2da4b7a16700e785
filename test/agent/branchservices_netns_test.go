//go:build netns

package agent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/world"
	"github.com/trunkline/trunkline/test/node"
	"github.com/trunkline/trunkline/test/testns"
)

// Ports of the node, and an address, that the rules of proxy translate.
const (
	portCluster = 30080 // with externalTrafficPolicy Cluster
	portLocal   = 30081 // with externalTrafficPolicy Local
	service     = "172.20.0.80"
)

// proxy has the node translate as kube-proxy does: its node ports and a Service lead to port 80 of
// a pod.
func (b *branched) proxy(to netip.Addr) {
	b.t.Helper()
	rules := fmt.Sprintf(`table ip proxy
delete table ip proxy
table ip proxy {
	chain services {
		fib daddr type local tcp dport %[1]d meta mark set meta mark | 0x4000 dnat to %[4]s:80
		fib daddr type local tcp dport %[2]d dnat to %[4]s:80
		ip daddr %[3]s tcp dport 80 dnat to %[4]s:80
	}
	chain prerouting { type nat hook prerouting priority -100; jump services; }
	chain output { type nat hook output priority -100; jump services; }
	chain postrouting { type nat hook postrouting priority 100; meta mark & 0x4000 != 0 meta mark set meta mark ^ 0x4000 masquerade fully-random; }
}`, portCluster, portLocal, service, to)
	cmd := exec.Command("ip", "netns", "exec", b.NS.Name, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %s", err, out)
	}
}

// path is a connection that a test tries.
type path struct {
	what    string
	from    *testns.NS
	to      netip.Addr
	port    uint16
	reached bool
}

func (b *branched) check(when string, paths []path) {
	b.t.Helper()
	for _, p := range paths {
		if p.reached {
			b.allowed(when+": "+p.what, p.from, p.to, p.port)
		} else {
			b.denied(when+": "+p.what, p.from, p.to, p.port)
		}
	}
}

// elastic gives an interface a public address.
func (b *branched) elastic(id vpc.ENIID) netip.Addr {
	b.t.Helper()
	address, err := b.Cloud().Elastic().Allocate(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.Cloud().Elastic().Associate(cloud.Association{Address: address.ID, Interface: id}); err != nil {
		b.t.Fatal(err)
	}
	return address.Public
}

// outside has the host outside of the VPC send its peers their address.
func (b *branched) outside() {
	b.t.Helper()
	b.Internet.Do(b.t, func() {
		l, err := net.Listen("tcp4", world.OutsideAddress+":7000")
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, c.RemoteAddr().String())
				c.Close()
			}
		}()
	})
}

// seenOutside is the address that the host outside of the VPC sees.
func seenOutside(from *testns.NS) (seen netip.Addr, err error) {
	err = from.Run(func() error {
		c, err := (&net.Dialer{Timeout: soon}).Dial("tcp4", world.OutsideAddress+":7000")
		if err != nil {
			return err
		}
		defer c.Close()
		text, err := io.ReadAll(c)
		if err != nil {
			return err
		}
		at, err := netip.ParseAddrPort(string(text))
		seen = at.Addr()
		return err
	})
	return seen, err
}

func (b *branched) isSeenOutside(what string, pod *node.Pod, as netip.Addr) {
	b.t.Helper()
	if seen, err := seenOutside(pod.NS); err != nil || seen != as {
		b.t.Errorf("%s: the host outside of the VPC sees %s (%v), want %s", what, seen, err, as)
	}
}

// judged are the policies of the test: server admits client to its port 80 from a pod's own address
// only, and jailed may only reach other's port 80.
func judged() []*networkingv1.NetworkPolicy {
	port := intstr.FromInt32(80)
	ports := []networkingv1.NetworkPolicyPort{{Port: &port}}
	labelled := func(app string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	peers := func(app string) []networkingv1.NetworkPolicyPeer {
		selector := labelled(app)
		return []networkingv1.NetworkPolicyPeer{{PodSelector: &selector}}
	}
	policy := func(name string, spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{
			TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: spec,
		}
	}
	return []*networkingv1.NetworkPolicy{
		policy("server", networkingv1.NetworkPolicySpec{
			PodSelector: labelled("server"), Ingress: []networkingv1.NetworkPolicyIngressRule{{From: peers("client"), Ports: ports}},
		}),
		policy("jailed", networkingv1.NetworkPolicySpec{
			PodSelector: labelled("jailed"), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress: []networkingv1.NetworkPolicyEgressRule{{To: peers("other"), Ports: ports}},
		}),
	}
}

// All security groups allow everything here: what is denied is denied by the mode or by a policy.
//
// Red without the chain own_source: a strict pod does not reach a node port of its node.
func TestServicesAddressesAndPoliciesOfPodsOnBranches(t *testing.T) {
	for _, mode := range []endpoint.Mode{endpoint.Strict, endpoint.Standard} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			standard := mode == endpoint.Standard
			b := newBranched(t, mode)
			for _, name := range []string{"node", "db"} {
				if _, err := b.Cloud().Group(b.group(name)).Authorize(cloud.Ingress, []cloud.Rule{{Protocol: -1, Peer: netip.MustParsePrefix("0.0.0.0/0")}}); err != nil {
					t.Fatal(err)
				}
			}
			b.start()
			serveIn(t, b.NS)
			b.outside()
			entries, pods := map[string]vpc.ENIID{}, map[string]*node.Pod{}
			for i, name := range []string{"server", "client", "other", "jailed"} {
				entry := b.branch(i+1, "node")
				entries[name], pods[name] = entry.ENI, b.addBranch(name, entry)
			}
			server, client, other, jailed := pods["server"], pods["client"], pods["other"], pods["jailed"]
			plain := b.putPlain("plain", "plain")
			if err := b.Add(plain); err != nil {
				t.Fatal(err)
			}
			serve(t, plain)
			b.settled()

			own, vip := b.nodeAddress(), netip.MustParseAddr(service)
			b.proxy(server.Addr)
			b.check("without policies", []path{
				{"a node port, traffic policy Cluster", b.peer, own, portCluster, true},
				// As on AWS: the client's address cannot leave by the node's primary interface.
				{"a node port, traffic policy Local", b.peer, own, portLocal, standard},
				{"the node by a Service", b.NS, vip, 80, true},
				{"a branch by a Service", client.NS, vip, 80, true},
				{"a branch by a node port of its node", client.NS, own, portCluster, true},
				{"a pod of the primary interface by a Service", plain.NS, vip, 80, true},
				{"jailed to another node", jailed.NS, b.db, 80, true},
				{"another node to server", b.peer, server.Addr, 81, true},
			})

			public := b.elastic(entries["server"])
			translated := public
			if standard {
				var err error
				if translated, err = seenOutside(b.NS); err != nil {
					t.Fatal(err)
				}
			}
			b.isSeenOutside("translation by the node", server, translated)
			b.Kill()
			b.start("external-snat=true")
			b.Until("no translation", func() error {
				if rules := b.rules(); strings.Contains(rules, "chain translate") {
					return errors.New(rules)
				}
				return nil
			})
			b.isSeenOutside("translation outside of the node", server, public)

			for _, p := range judged() {
				b.server.Put(networkPolicies, p)
			}
			b.Until("the policies deny", func() error {
				if dial(t, other.NS, server.Addr, 80, deny) == nil || dial(t, jailed.NS, b.db, 80, deny) == nil {
					return errors.New("connected")
				}
				return nil
			})
			b.check("under policies", []path{
				{"client to server", client.NS, server.Addr, 80, true},
				{"client to another port of server", client.NS, server.Addr, 81, false},
				{"other to server", other.NS, server.Addr, 80, false},
				{"a pod of the primary interface to server", plain.NS, server.Addr, 80, false},
				{"another node to server", b.peer, server.Addr, 80, false},
				{"another node to other", b.peer, other.Addr, 80, true},
				{"the node to server, as the kubelet probes", b.NS, server.Addr, 81, true},
				{"client to server by a Service", client.NS, vip, 80, true},
				{"other to server by a Service", other.NS, vip, 80, false},
				{"a pod of the primary interface to server by a Service", plain.NS, vip, 80, false},
				{"the node to server by a Service", b.NS, vip, 80, true},
				{"another node to server by a node port", b.peer, own, portCluster, false},
				{"other to server by a node port", other.NS, own, portCluster, false},
				{"jailed to other", jailed.NS, other.Addr, 80, true},
				{"jailed to another port of other", jailed.NS, other.Addr, 81, false},
				{"jailed to client", jailed.NS, client.Addr, 80, false},
				{"jailed to another node", jailed.NS, b.db, 80, false},
				{"jailed to its own node", jailed.NS, own, 80, true},
				{"the node to jailed", b.NS, jailed.Addr, 80, true},
				{"other to jailed", other.NS, jailed.Addr, 80, true},
			})
			b.proxy(other.Addr)
			b.check("under policies", []path{
				{"another node to other by a node port", b.peer, own, portCluster, true},
				{"jailed to other by a Service", jailed.NS, vip, 80, true},
			})
			b.proxy(client.Addr)
			b.denied("jailed to client by a Service", jailed.NS, vip, 80)
		})
	}
}
