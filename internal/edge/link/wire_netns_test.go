//go:build netns

package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

func TestAWiredPodIsDisconnectedUntilUp(t *testing.T) {
	h, node := open(t)
	podNS := testns.New(t, "pod")
	p := pod("web", "10.0.1.7")
	p.Attachment.Table = 3
	index, err := h.Wire(context.Background(), podNS.Open(t), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := ip(t, node, "link show "+p.Link); !strings.Contains(got, "state DOWN") {
		t.Errorf("the host's end is not down before Up:\n%s", got)
	}
	if got := ip(t, node, "route"); strings.Contains(got, "10.0.1.7") {
		t.Errorf("the pod has a route before Up:\n%s", got)
	}
	if err := h.Up(context.Background(), p, index); err != nil {
		t.Fatal(err)
	}
	correct(t, h, podNS.Open(t), p)
}

func TestALinkIsPreparedForFiltersBeforeItIsUp(t *testing.T) {
	h, node := open(t)
	qdiscs := func(p endpoint.Endpoint) string {
		out, err := exec.Command("tc", "-n", node.Name, "qdisc", "show", "dev", p.Link).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	off := pod("off", "10.0.1.7")
	wire(t, h, testns.New(t, "off").Open(t), off)
	if got := qdiscs(off); strings.Contains(got, "clsact") {
		t.Errorf("without PrepareFilters: %s", got)
	}
	h.PrepareFilters()
	on, ns := pod("on", "10.0.1.8"), testns.New(t, "on").Open(t)
	for range 2 {
		if _, err := h.Wire(t.Context(), ns, on); err != nil {
			t.Fatal(err)
		}
		if got := qdiscs(on); !strings.Contains(got, "clsact") {
			t.Errorf("with PrepareFilters: %s", got)
		}
	}
	index, err := h.Index(off.Link)
	for range 2 {
		if err = errors.Join(err, h.AddClsact(t.Context(), index)); err != nil {
			t.Fatal(err)
		}
	}
	if got := qdiscs(off); !strings.Contains(got, "clsact") {
		t.Errorf("after AddClsact: %s", got)
	}
	if err := h.AddClsact(t.Context(), 1<<20); err == nil {
		t.Error("a link that does not exist gets a qdisc")
	}
}

func TestWireWorksForIPv6AndBothFamilies(t *testing.T) {
	for i, addrs := range []string{"2600:1f14::7", "10.0.1.8+2600:1f14::8"} {
		h, _ := open(t)
		podNS := testns.New(t, fmt.Sprintf("pod%d", i))
		p := pod(fmt.Sprintf("web%d", i), "10.0.0.1")
		var list []netip.Addr
		for a := range strings.SplitSeq(addrs, "+") {
			list = append(list, netip.MustParseAddr(a))
		}
		p.Addresses = endpoint.AddressesOf(list...)
		p.Attachment.Table = 3
		wire(t, h, podNS.Open(t), p)
		correct(t, h, podNS.Open(t), p)
	}
}

func TestASecondWireKeepsTheLink(t *testing.T) {
	h, node := open(t)
	podNS := testns.New(t, "pod").Open(t)
	p := pod("web", "10.0.1.7")
	first := wire(t, h, podNS, p)
	before := ip(t, node, "-o link show "+p.Link)
	if second := wire(t, h, podNS, p); second != first {
		t.Errorf("a second Wire: index %d, want %d: the link kept", second, first)
	}
	if after := ip(t, node, "-o link show "+p.Link); after != before {
		t.Errorf("the link changed:\n%s%s", before, after)
	}
	correct(t, h, podNS, p)
}

var errCrash = errors.New("crash")

func TestWireConvergesAfterACrashAtAnyStep(t *testing.T) {
	for _, at := range []string{"create", "mark", "pod", "rules"} {
		t.Run(at, func(t *testing.T) {
			h, _ := open(t)
			podNS := testns.New(t, "pod").Open(t)
			p := pod("web", "10.0.1.7")
			p.Attachment.Table = 4
			h.afterStep = func(step string) error {
				if step == at {
					return errCrash
				}
				return nil
			}
			if _, err := h.Wire(context.Background(), podNS, p); !errors.Is(err, errCrash) {
				t.Fatalf("Wire did not stop at %s: %v", at, err)
			}
			h.afterStep = nil
			pods, err := h.Pods(context.Background())
			if err != nil || len(pods) != 1 || pods[0].Half != (at == "create") {
				t.Errorf("after the crash Pods returns %+v, %v", pods, err)
			}
			wire(t, h, podNS, p)
			correct(t, h, podNS, p)
		})
	}
}

func TestObjectsOfACrashedWireArePruned(t *testing.T) {
	for _, at := range []string{"create", "mark", "pod", "rules"} {
		t.Run(at, func(t *testing.T) {
			h, node := open(t)
			podNS := testns.New(t, "pod").Open(t)
			p := pod("web", "10.0.1.7")
			p.Attachment.Table = 4
			h.afterStep = func(step string) error {
				if step == at {
					return errCrash
				}
				return nil
			}
			_, _ = h.Wire(context.Background(), podNS, p)
			if _, err := h.Apply(context.Background(), func() hostnet.State { return hostnet.State{} }); err != nil {
				t.Fatal(err)
			}
			r := reap(t, h)
			eventually(t, "the link gone", func() bool { return r.count() == 1 })
			if left := ip(t, node, "-o link show type veth") + ip(t, node, "rule show prio 512") + ip(t, node, "rule show prio 1536"); left != "" {
				t.Errorf("left over:\n%s", left)
			}
		})
	}
}

func TestWireReplacesTheLinkOfAnOlderSandbox(t *testing.T) {
	h, _ := open(t)
	old, fresh := testns.New(t, "old").Open(t), testns.New(t, "new").Open(t)
	p := pod("db-0", "10.0.1.7")
	wire(t, h, old, p)
	next := sandbox("db-0", "10.0.1.8", endpoint.Key{ContainerID: "c-second", IfName: "eth0"})
	wire(t, h, fresh, next)

	// The old sandbox's late DEL does not change the newer one.
	if queued, err := h.Unwire(context.Background(), p); queued || err != nil {
		t.Errorf("Unwire of the old sandbox: queued %v, %v", queued, err)
	}
	correct(t, h, fresh, next)
}

func TestWireDoesNotChangeForeignObjects(t *testing.T) {
	t.Run("an interface in the pod", func(t *testing.T) {
		h, node := open(t)
		podNS := testns.New(t, "pod")
		ip(t, podNS, "link add eth0 type veth peer name other")
		if _, err := h.Wire(context.Background(), podNS.Open(t), pod("web", "10.0.1.7")); !errors.Is(err, ErrInterfaceExists) {
			t.Errorf("got %v, want ErrInterfaceExists", err)
		}
		if left := ip(t, node, "-o link show type veth"); left != "" {
			t.Errorf("left on the node:\n%s", left)
		}
		ip(t, podNS, "link show eth0")
	})
	t.Run("a link on the node", func(t *testing.T) {
		h, node := open(t)
		podNS := testns.New(t, "pod")
		p := pod("web", "10.0.1.7")
		ip(t, node, "link add "+p.Link+" type veth peer name other")
		if _, err := h.Wire(context.Background(), podNS.Open(t), p); !errors.Is(err, ErrInterfaceExists) {
			t.Errorf("got %v, want ErrInterfaceExists", err)
		}
		if _, err := h.Unwire(context.Background(), p); err != nil {
			t.Error(err)
		}
		if got := ip(t, node, "link show "+p.Link); strings.Contains(got, "alias") || strings.Contains(got, "group 3") {
			t.Errorf("the foreign link was changed:\n%s", got)
		}
	})
	t.Run("another sandbox's interface in the same pod", func(t *testing.T) {
		h, _ := open(t)
		podNS := testns.New(t, "pod").Open(t)
		wire(t, h, podNS, pod("web", "10.0.1.7"))
		other := pod("api", "10.0.1.8")
		if _, err := h.Wire(context.Background(), podNS, other); !errors.Is(err, ErrInterfaceExists) {
			t.Errorf("got %v, want ErrInterfaceExists", err)
		}
		correct(t, h, podNS, pod("web", "10.0.1.7"))
	})
	t.Run("a default route in the pod", func(t *testing.T) {
		h, _ := open(t)
		podNS := testns.New(t, "pod")
		ip(t, podNS, "link add net1 type veth peer name other")
		ip(t, podNS, "link set net1 up")
		ip(t, podNS, "route add default dev net1")
		if _, err := h.Wire(context.Background(), podNS.Open(t), pod("web", "10.0.1.7")); !errors.Is(err, ErrInterfaceExists) {
			t.Errorf("got %v, want ErrInterfaceExists", err)
		}
		if got := ip(t, podNS, "route show default"); !strings.Contains(got, "net1") {
			t.Errorf("the pod's own default route is gone: %s", got)
		}
	})
	t.Run("a route on the node", func(t *testing.T) {
		h, node := open(t)
		podNS := testns.New(t, "pod")
		ip(t, node, "link add x type veth peer name y")
		ip(t, node, "link set x up")
		ip(t, node, "route add 10.0.1.7/32 dev x")
		p := pod("web", "10.0.1.7")
		index, err := h.Wire(context.Background(), podNS.Open(t), p)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Up(context.Background(), p, index); err == nil || !strings.Contains(err.Error(), "not ours") {
			t.Errorf("Up despite a foreign route: %v", err)
		}
	})
}

func TestWireRefusesADescriptorOfNoPod(t *testing.T) {
	h, node := open(t)
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, ns := range map[string]*os.File{"a file": file, "the node": node.Open(t)} {
		if _, err := h.Wire(context.Background(), ns, pod("web", "10.0.1.7")); !errors.Is(err, ErrNotNamespace) {
			t.Errorf("%s: got %v, want ErrNotNamespace", name, err)
		}
	}
}

func TestUpWithoutWireIsAnError(t *testing.T) {
	h, _ := open(t)
	const none = 1 << 20 // index of no link
	if err := h.Up(context.Background(), pod("web", "10.0.1.7"), none); !errors.Is(err, ErrNotWired) {
		t.Errorf("got %v, want ErrNotWired", err)
	}
}

func TestUpDoesNotConnectADiscardedLink(t *testing.T) {
	h, node := open(t)
	p := pod("web", "10.0.1.7")
	index, err := h.Wire(t.Context(), testns.New(t, "pod").Open(t), p)
	if err == nil {
		_, err = h.Unwire(t.Context(), p)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Up(t.Context(), p, index); !errors.Is(err, ErrNotWired) {
		t.Errorf("got %v, want ErrNotWired", err)
	}
	if got := ip(t, node, "link show "+p.Link); !strings.Contains(got, "state DOWN") {
		t.Errorf("the discarded link is not down:\n%s", got)
	}
	if got := ip(t, node, "route"); strings.Contains(got, "10.0.1.7") {
		t.Errorf("the address of a discarded link has a route:\n%s", got)
	}
}

// A StatefulSet's next pod has the same link name. The late Up of an ADD of the old sandbox
// must not connect it before its own filter and policies are in force.
func TestUpDoesNotConnectTheLinkOfAnotherSandbox(t *testing.T) {
	h, node := open(t)
	old, next := pod("db-0", "10.0.1.7"), sandbox("db-0", "10.0.1.8", endpoint.Key{ContainerID: "c-second", IfName: "eth0"})
	index, err := h.Wire(t.Context(), testns.New(t, "old").Open(t), old)
	if err == nil {
		_, err = h.Wire(t.Context(), testns.New(t, "pod").Open(t), next)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Up(t.Context(), old, index); !errors.Is(err, ErrNotWired) {
		t.Errorf("got %v, want ErrNotWired", err)
	}
	if got := ip(t, node, "link show "+next.Link); !strings.Contains(got, "state DOWN") {
		t.Errorf("the link of the next sandbox is not down:\n%s", got)
	}
	if got := ip(t, node, "route"); strings.Contains(got, "10.0.1.7") {
		t.Errorf("the old sandbox's address has a route:\n%s", got)
	}
}

// Without its rules a pod's traffic leaves by the primary interface, where the VPC drops it.
func TestARefusedRuleFailsTheWiring(t *testing.T) {
	h, _ := open(t)
	valid := hostnet.Rule{Family: vpc.IPv4, Priority: hostnet.RuleToPod, To: netip.MustParsePrefix("10.0.1.7/32"), Table: hostnet.TableMain, Protocol: hostnet.RouteProtocol}
	refused := valid
	refused.To = netip.MustParsePrefix("2600:1f14::7/128") // of the other family
	from := hostnet.Rule{Family: vpc.IPv4, Priority: hostnet.RuleFromPod, From: refused.To, Table: 3, Protocol: hostnet.RouteProtocol}
	w := wiring{sockets: h.sockets}
	for range 2 { // an equal rule is accepted
		if err := w.rules(t.Context(), []hostnet.Rule{valid}); err != nil {
			t.Fatal(err)
		}
	}
	for _, w.kept = range []bool{false, true} {
		for _, rules := range [][]hostnet.Rule{{refused}, {valid, refused}, {refused, valid}, {valid, from}} {
			if err := w.rules(t.Context(), rules); err == nil {
				t.Errorf("a kept link %v, %v: no error, want the kernel's", w.kept, rules)
			}
		}
	}
}

func TestThePodsNamespaceMayBeDeletedAfterAnyStep(t *testing.T) {
	for _, at := range []string{"create", "mark", "pod", "rules"} {
		t.Run(at, func(t *testing.T) {
			h, node := open(t)
			keep := testns.New(t, "pod")
			p := pod("web", "10.0.1.7")
			h.afterStep = func(step string) error {
				if step == at {
					ip(t, keep, "link delete eth0") // as deleting the namespace does
				}
				return nil
			}
			index, err := h.Wire(context.Background(), keep.Open(t), p)
			if at == "create" || at == "mark" {
				if !errors.Is(err, ErrNamespaceGone) {
					t.Errorf("Wire: got %v, want ErrNamespaceGone", err)
				}
			} else if err := h.Up(context.Background(), p, index); !errors.Is(err, ErrNotWired) {
				t.Errorf("Up: got %v, want ErrNotWired", err)
			}
			if _, err := h.Unwire(context.Background(), p); err != nil {
				t.Errorf("Unwire: %v", err)
			}
			if left := ip(t, node, "-o link show type veth") + ip(t, node, "rule show prio 512"); left != "" {
				t.Errorf("left over:\n%s", left)
			}
		})
	}
}

// Another sandbox gets the same namespace before the old link is deleted.
func TestADyingLinkDoesNotBlockTheNextSandbox(t *testing.T) {
	h, _ := open(t)
	podNS := testns.New(t, "pod")
	old, next := pod("old", "10.0.1.7"), pod("next", "10.0.1.8")
	wire(t, h, podNS.Open(t), old)
	if _, err := h.Unwire(context.Background(), old); err != nil {
		t.Fatal(err)
	}
	wire(t, h, podNS.Open(t), next)
	correct(t, h, podNS.Open(t), next)
	r := reap(t, h)
	eventually(t, "the old link is reported gone", func() bool { return r.count() == 1 })
	if got := r.gone[0]; got.ContainerID != old.Key.ContainerID {
		t.Errorf("%s is reported gone", got.ContainerID)
	}
	// A link that is not dying blocks it, ours or not.
	if _, err := h.Wire(context.Background(), podNS.Open(t), pod("third", "10.0.1.9")); !errors.Is(err, ErrInterfaceExists) {
		t.Errorf("over an existing interface: %v, want ErrInterfaceExists", err)
	}
}

// AWS's plugin leaves rules for an address, and made more when it was used again. Those of
// the same priority that are older precede ours.
func TestRulesThatAnyOwnerMadeForTheAddressAreReplaced(t *testing.T) {
	const from, to = "rule add pref 1536 from 10.0.1.7 lookup ", "rule add pref 512 to 10.0.1.7 lookup "
	for name, rules := range map[string][]string{
		"of another table":              {from + "7"},
		"several":                       {from + "7", from + "8", to + "9", to + "main"},
		"of our table":                  {from + "3", to + "main"},
		"of a routing daemon":           {from + "7 proto zebra"},
		"to ranges of the VPC":          {"rule add pref 1536 from 10.0.1.7 to 10.0.0.0/16 lookup 7", "rule add pref 1536 from 10.0.1.7 to 10.1.0.0/16 lookup 7"},
		"with a mark":                   {"rule add pref 512 to 10.0.1.7 fwmark 0x1/0x1 lookup 7", from + "7"},
		"of another table, beside ours": {from + "7", from + "3 proto 211"},
	} {
		for _, c := range []struct {
			kept  bool
			table uint32
		}{{false, 3}, {true, 3}, {false, hostnet.TableMain}, {true, hostnet.TableMain}} {
			t.Run(fmt.Sprintf("%s, link kept %v, table %d", name, c.kept, c.table), func(t *testing.T) {
				h, node := open(t)
				others := []string{"rule add pref 1536 from 10.0.1.8 lookup 7", "rule add pref 1537 from 10.0.1.7 lookup 7"}
				podNS := testns.New(t, "pod").Open(t)
				p := pod("web", "10.0.1.7")
				p.Attachment.Table = c.table
				if c.kept { // a crash before the rules
					h.afterStep = func(step string) error {
						if step == "pod" {
							return errCrash
						}
						return nil
					}
					if _, err := h.Wire(t.Context(), podNS, p); !errors.Is(err, errCrash) {
						t.Fatal(err)
					}
					h.afterStep = nil
				}
				for _, r := range append(rules, others...) {
					ip(t, node, r)
				}
				wire(t, h, podNS, p)
				correct(t, h, podNS, p)
				var got []string
				for line := range strings.Lines(ip(t, node, "rule")) {
					if strings.Contains(line, "10.0.1.") {
						got = append(got, strings.Join(strings.Fields(line), " "))
					}
				}
				want := []string{"512: from all to 10.0.1.7 lookup main", "1536: from 10.0.1.8 lookup 7", "1537: from 10.0.1.7 lookup 7"}
				if c.table != hostnet.TableMain {
					want = append(want, "1536: from 10.0.1.7 lookup 3")
				}
				slices.Sort(got)
				slices.Sort(want)
				for i := range got {
					got[i] = strings.TrimSuffix(got[i], " proto 211")
				}
				if !slices.Equal(got, want) {
					t.Errorf("rules:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			})
		}
	}
}
