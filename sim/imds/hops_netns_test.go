//go:build netns

package imds

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/testns"
)

// chain is three namespaces, service — node — pod; the node routes between the
// others.
type chain struct{ service, node, pod *testns.NS }

func newChain(t *testing.T) chain {
	t.Helper()
	c := chain{service: testns.New(t, "imds"), node: testns.New(t, "node"), pod: testns.New(t, "pod")}
	cable(t, c.service, c.node, "169.254.169.254/24", "169.254.169.5/24")
	cable(t, c.node, c.pod, "10.9.0.1/24", "10.9.0.2/24")
	cable(t, c.service, c.node, "fd00:ec2::254/64", "fd00:ec2::5/64")
	cable(t, c.node, c.pod, "fd99::1/64", "fd99::2/64")
	c.node.Do(t, func() {
		for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/"+path, []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
		}
	})
	route(t, c.pod, "0.0.0.0/0", "10.9.0.1")
	route(t, c.pod, "::/0", "fd99::1")
	route(t, c.service, "10.9.0.0/24", "169.254.169.5")
	route(t, c.service, "fd99::/64", "fd00:ec2::5")
	return c
}

// cable connects two namespaces by a veth pair with an address at each end.
func cable(t *testing.T, a, b *testns.NS, addrA, addrB string) {
	t.Helper()
	name := fmt.Sprintf("c%d", strings.Count(addrA, ":")) + string(addrA[len(addrA)-4])
	a.Do(t, func() {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name + "a"
		pair := netlink.NewVeth(attrs)
		pair.PeerName, pair.PeerNamespace = name+"b", netlink.NsFd(b.Open(t).Fd())
		if err := netlink.LinkAdd(pair); err != nil {
			t.Fatal(err)
		}
		raise(t, name+"a", addrA)
	})
	b.Do(t, func() { raise(t, name+"b", addrB) })
}

func raise(t *testing.T, device, address string) {
	t.Helper()
	l, err := netlink.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	a.Flags = 2 // IFA_F_NODAD
	if err := netlink.AddrAdd(l, a); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
}

func route(t *testing.T, ns *testns.NS, to, via string) {
	t.Helper()
	ns.Do(t, func() {
		_, dst, err := net.ParseCIDR(to)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(via)}); err != nil {
			t.Fatal(err)
		}
	})
}

// anyInstance is a Source that returns the same instance for every address.
type anyInstance struct{ instance Instance }

func (e anyInstance) ByAddress(netip.Addr) (Instance, bool)          { return e.instance, true }
func (e anyInstance) Credentials(vpc.InstanceID) (Credentials, bool) { return Credentials{}, false }

// putToken requests a token from inside a namespace.
func putToken(from *testns.NS, address string, wait time.Duration) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = from.Run(func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequest(http.MethodPut, "http://"+address+"/latest/api/token", nil)
	if err != nil {
		return err
	}
	r.Header.Set(headerTokenTTL, "60")
	response, err := (&http.Client{Transport: transport, Timeout: wait}).Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return nil
}

func TestTokenResponseReachesAsFarAsTheHopLimit(t *testing.T) {
	for _, family := range []struct{ name, address string }{
		{"IPv4", "169.254.169.254:80"}, {"IPv6", "[fd00:ec2::254]:80"},
	} {
		for _, try := range []struct {
			limit int
			pod   bool
		}{{0, false}, {1, false}, {2, true}, {64, true}} {
			t.Run(fmt.Sprintf("%s limit %d", family.name, try.limit), func(t *testing.T) {
				c := newChain(t)
				instance := node()
				instance.Options.HopLimit, instance.Options.IPv6 = try.limit, true
				var l net.Listener
				err := c.service.Run(func() (err error) {
					config := net.ListenConfig{}
					config.SetMultipathTCP(false)
					l, err = config.Listen(t.Context(), "tcp", family.address)
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- New(anyInstance{instance}, Config{}).Serve(ctx, l) }()
				defer func() {
					stop()
					if err := <-done; err != nil {
						t.Error(err)
					}
				}()
				if err := putToken(c.node, family.address, 30*time.Second); err != nil {
					t.Errorf("from the node: %v", err)
				}
				wait := 30 * time.Second
				if !try.pod {
					wait = 600 * time.Millisecond // longer than two retransmissions
				}
				if err := putToken(c.pod, family.address, wait); (err == nil) != try.pod {
					t.Errorf("from a pod: %v, want an answer: %v", err, try.pod)
				}
			})
		}
	}
}
