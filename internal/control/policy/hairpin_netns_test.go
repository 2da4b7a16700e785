//go:build netns

package policy

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The rules of a Service as kube-proxy writes them: in nftables mode (mark-for-masquerade and
// masquerading in pkg/proxy/nftables/proxier.go) as in iptables mode (--or-mark and --xor-mark in
// pkg/proxy/iptables/proxier.go) its mark is one bit, and the others stay.
const serviceRules = `
table ip service {
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		ip daddr 172.20.0.10 meta mark set meta mark or 0x4000 dnat to %s
	}
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x4000 == 0 return
		meta mark set meta mark xor 0x4000
		masquerade
	}
}`

// Its packets have the pod's address at both ends where policies are judged.
func TestAnIsolatedPodReachesItselfThroughItsService(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.server.Put(networkPolicies, allow("b", "", 0))
	r.waitUntil("enforced", r.on.Load)
	if out, err := exec.Command("ip", "-n", r.node.Name, "address", "add", "10.0.0.4/24", "dev", "eth0").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	apply := exec.Command("ip", "netns", "exec", r.node.Name, "nft", "-f", "-")
	apply.Stdin = strings.NewReader(fmt.Sprintf(serviceRules, r.address("b")))
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dial := func(from string) error {
		return r.ns[from].Run(func() error {
			c, err := (&net.Dialer{Timeout: 1500 * time.Millisecond}).Dial("tcp4", "172.20.0.10:80")
			if err != nil {
				return err
			}
			defer c.Close()
			return connection{c}.answers()
		})
	}
	if err := dial("b"); err != nil {
		t.Errorf("the pod itself: %v", err)
	}
	if dial("a") == nil {
		t.Error("another pod reaches the isolated one")
	}
}
