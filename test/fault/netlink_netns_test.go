//go:build netns

package fault

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// message names the change that a write to one of the agent's sockets requests from
// the kernel; it is empty for other writes.
func (t *tracer) message(fd uint64, read func() string) string {
	ours, err := unix.PidfdGetfd(t.pidfd, int(int32(fd)), 0)
	if err != nil {
		return "" // the socket was closed meanwhile
	}
	defer unix.Close(ours)
	domain, err := unix.GetsockoptInt(ours, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_NETLINK {
		return ""
	}
	protocol, err := unix.GetsockoptInt(ours, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil {
		return ""
	}
	var changes []string
	for kind := range messages([]byte(read())) {
		what := ""
		switch protocol {
		case unix.NETLINK_ROUTE:
			what = routeChange(kind)
		case unix.NETLINK_NETFILTER:
			what = filterChange(kind)
		}
		if what != "" && !slices.Contains(changes, what) {
			changes = append(changes, what)
		}
	}
	return strings.Join(changes, ", ")
}

// messages yields the types of the netlink messages in a datagram.
func messages(b []byte) func(yield func(kind uint16) bool) {
	return func(yield func(uint16) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) || !yield(binary.NativeEndian.Uint16(b[4:])) {
				return
			}
			b = b[min((size+3)&^3, len(b)):]
		}
	}
}

// routeChange names an rtnetlink message that modifies something.
// Source: linux/rtnetlink.h; every object has four consecutive message types.
func routeChange(kind uint16) string {
	const get = 2
	verb := kind & 3
	if kind < unix.RTM_BASE || verb == get {
		return ""
	}
	object := fmt.Sprint("object ", kind)
	if objects := []string{"link", "address", "route", "neighbour", "rule"}; int(kind-unix.RTM_BASE)/4 < len(objects) {
		object = objects[(kind-unix.RTM_BASE)/4]
	}
	return []string{"new", "delete", "", "set"}[verb] + " " + object
}

// filterChange names an nftables message that modifies something.
// Source: linux/netfilter/nf_tables.h.
func filterChange(kind uint16) string {
	if kind>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return ""
	}
	return map[uint16]string{
		unix.NFT_MSG_NEWTABLE: "new filter table", unix.NFT_MSG_DELTABLE: "delete filter table",
		unix.NFT_MSG_NEWCHAIN: "new filter chain", unix.NFT_MSG_DELCHAIN: "delete filter chain",
		unix.NFT_MSG_NEWRULE: "new filter rule", unix.NFT_MSG_DELRULE: "delete filter rule",
		unix.NFT_MSG_NEWSET: "new filter set", unix.NFT_MSG_DELSET: "delete filter set",
		unix.NFT_MSG_NEWSETELEM: "new filter element", unix.NFT_MSG_DELSETELEM: "delete filter element",
	}[kind&0xff]
}

// gathered reads the buffers of a struct msghdr. Source: sendmsg(2).
func gathered(thread int, at uint64) string {
	const vectors, count, size = 16, 24, 32 // offsets of msg_iov and msg_iovlen, bytes read of the struct
	header := []byte(text(thread, at, size))
	if len(header) < size {
		return ""
	}
	var all strings.Builder
	vector := binary.NativeEndian.Uint64(header[vectors:])
	for range min(binary.NativeEndian.Uint64(header[count:]), 16) {
		iov := []byte(text(thread, vector, 16))
		if len(iov) < 16 {
			break
		}
		all.WriteString(text(thread, binary.NativeEndian.Uint64(iov), int(min(binary.NativeEndian.Uint64(iov[8:]), 1<<20))))
		vector += 16
	}
	return all.String()
}
