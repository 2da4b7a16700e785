package endpoint

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// ID identifies an endpoint on its node. Kernel maps are keyed by it, so it is small,
// survives restarts, and is free again only when the endpoint's row is gone.
type ID uint16

// MaxID is the largest ID; 0 is none. It bounds the size of kernel arrays that are
// indexed by endpoint: 16,384 words of 8 bytes are 128 KiB. A node has at most about
// a thousand pods, so an ID is not used again for thousands of pods.
const MaxID ID = 1<<14 - 1

// ErrNoID is returned when every ID is in use.
var ErrNoID = errors.New("every endpoint ID is in use")

// NextID returns the first ID after last that is not in use, and starts again at 1
// after MaxID. IDs are used in turn, so that one is reused as late as possible.
func NextID(last ID, used func(ID) bool) (ID, error) {
	id := last
	for range MaxID {
		if id++; id > MaxID || id == 0 {
			id = 1
		}
		if !used(id) {
			return id, nil
		}
	}
	return 0, ErrNoID
}

// maxLinkName is the longest interface name in bytes (IFNAMSIZ without the NUL).
const maxLinkName = 15

// DefaultLinkPrefix begins the name of a pod's host end, as AWS's does by default, and
// StrictLinkPrefix that of a pod on a branch in strict mode, as AWS's always does: rules of other
// programs exempt such links by their names.
const (
	DefaultLinkPrefix = "eni"
	StrictLinkPrefix  = "vlan"
)

// LinkName is the name of the host end of the link of a pod's first interface: the prefix and the first
// eleven digits of sha1("namespace.pod"). AWS's CNI, Calico and their tools find
// a pod's link by it. The prefix has at most four characters.
func LinkName(prefix, namespace, pod string) string {
	sum := sha1.Sum([]byte(namespace + "." + pod))
	name := prefix + hex.EncodeToString(sum[:])[:linkDigits]
	return name[:min(len(name), maxLinkName)]
}

// FirstIfName is the name that container runtimes give the interface of a pod's first network.
const FirstIfName = "eth0"

// LinkNameOf is the name of the host end of an attachment's link: LinkName of the pod, or of the
// container where the runtime gave no pod. A further interface of the pod, such as Multus makes,
// has a link beside the first one, and a name of its own; no pod's name has a slash.
func LinkNameOf(prefix string, key Key, pod Pod) string {
	namespace, name := pod.Namespace, pod.Name
	if name == "" {
		namespace, name = "container", key.ContainerID
	}
	if key.IfName != FirstIfName {
		name += "/" + key.IfName
	}
	return LinkName(prefix, namespace, name)
}

// linkDigits is how many digits of the hash are in the name of a pod's link.
const linkDigits = 11

// IsLinkName reports whether a link may be that of a pod, by LinkName with some prefix.
func IsLinkName(name string) bool {
	digits := len(name) - linkDigits
	return digits > 0 && strings.Trim(name[digits:], "0123456789abcdef") == ""
}

// MACs returns the addresses of an endpoint's link, the host's end and the pod's.
// They follow from the key, so that a repeated ADD finds what an interrupted one
// made, and are explicit, so that udev does not rewrite them.
func MACs(k Key) (host, pod vpc.MAC) {
	sum := sha256.Sum256([]byte(k.ContainerID + "/" + k.IfName))
	copy(host[:], sum[0:6])
	copy(pod[:], sum[6:12])
	for _, m := range []*vpc.MAC{&host, &pod} {
		m[0] = m[0]&^1 | 2 // unicast, locally administered
	}
	return host, pod
}
