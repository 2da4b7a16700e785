package hostnet

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Alias is the mark on the host end of a pod's link: enough to rebuild the agent's
// journal from the kernel.
type Alias struct {
	endpoint.Key
	Addresses []netip.Addr
}

// AliasOf returns the alias of an endpoint's link.
func AliasOf(e endpoint.Endpoint) Alias { return Alias{Key: e.Key, Addresses: e.Addresses.List()} }

const podAlias = LinkAliasPrefix + "pod/"

// String returns the alias as the kernel stores it, such as
// "trunkline:pod/4f3a…/eth0/10.0.1.7". At most 255 bytes.
func (a Alias) String() string {
	addrs := make([]string, len(a.Addresses))
	for i, ip := range a.Addresses {
		addrs[i] = ip.String()
	}
	return podAlias + a.ContainerID + "/" + a.IfName + "/" + strings.Join(addrs, "+")
}

// ParseAlias parses the format of Alias.String. It reports false for any other alias.
func ParseAlias(alias string) (Alias, bool) {
	rest, ours := strings.CutPrefix(alias, podAlias)
	parts := strings.Split(rest, "/")
	if !ours || len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return Alias{}, false
	}
	a := Alias{Key: endpoint.Key{ContainerID: parts[0], IfName: parts[1]}}
	for text := range strings.SplitSeq(parts[2], "+") {
		if text == "" {
			continue
		}
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return Alias{}, false
		}
		a.Addresses = append(a.Addresses, ip)
	}
	return a, true
}

// ENIAlias is the mark on a secondary ENI's link.
func ENIAlias(id vpc.ENIID) string { return fmt.Sprintf("%seni/%s", LinkAliasPrefix, id) }
