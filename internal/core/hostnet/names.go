package hostnet

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// LinkPrefix begins the name of a pod's host end, as AWS's does by default.
const LinkPrefix = "eni"

// maxName is the longest interface name, in bytes (IFNAMSIZ less the NUL).
const maxName = 15

// LinkName is the name of the host end of a pod's link: the prefix and the first
// eleven digits of sha1("namespace.pod"). AWS's CNI, Calico and their tools find
// a pod's link by it. The prefix has at most four characters.
func LinkName(prefix, namespace, pod string) string {
	sum := sha1.Sum([]byte(namespace + "." + pod))
	name := prefix + hex.EncodeToString(sum[:])[:11]
	return name[:min(len(name), maxName)]
}

// PodMACs returns the addresses of a pod's link, the host's end and the pod's.
// They follow from the attachment, so that a repeated ADD finds what an
// interrupted one made, and are explicit, so that udev does not rewrite them.
func PodMACs(containerID, ifName string) (host, pod vpc.MAC) {
	sum := sha256.Sum256([]byte(containerID + "/" + ifName))
	copy(host[:], sum[0:6])
	copy(pod[:], sum[6:12])
	for _, m := range []*vpc.MAC{&host, &pod} {
		m[0] = m[0]&^1 | 2 // unicast, locally administered
	}
	return host, pod
}

// Attachment is what CNI calls an attachment, as far as a link's alias keeps it:
// enough to rebuild the agent's journal from the kernel.
type Attachment struct {
	ContainerID string
	IfName      string
	Addresses   []netip.Addr
}

const podAlias = LinkAliasPrefix + "pod/"

// Alias is the mark on the host end of a pod's link, such as
// "trunkline:pod/4f3a…/eth0/10.0.1.7". At most 255 bytes.
func (a Attachment) Alias() string {
	addrs := make([]string, len(a.Addresses))
	for i, ip := range a.Addresses {
		addrs[i] = ip.String()
	}
	return podAlias + a.ContainerID + "/" + a.IfName + "/" + strings.Join(addrs, "+")
}

// ParseAlias reads what Alias wrote. It reports false for any other alias.
func ParseAlias(alias string) (Attachment, bool) {
	rest, ours := strings.CutPrefix(alias, podAlias)
	parts := strings.Split(rest, "/")
	if !ours || len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return Attachment{}, false
	}
	a := Attachment{ContainerID: parts[0], IfName: parts[1]}
	for text := range strings.SplitSeq(parts[2], "+") {
		if text == "" {
			continue
		}
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return Attachment{}, false
		}
		a.Addresses = append(a.Addresses, ip)
	}
	return a, true
}

// ENIAlias is the mark on a secondary ENI's link.
func ENIAlias(id vpc.ENIID) string { return fmt.Sprintf("%seni/%s", LinkAliasPrefix, id) }
