// Package portfilter makes the kernel withhold netlink notifications of a program's own
// requests from its listener, so that they cost no wake-up and no parsing.
//
// The kernel writes the port ID of the socket that requested a change into the
// notification (nlmsg_pid of netlink(7)); a notification without one has port 0 and is
// always delivered. The package decides nothing and is used by edge/link, edge/nft
// and kernel/nfnetlink.
package portfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Of is the port ID of a bound netlink socket.
func Of(fd int) (uint32, error) {
	address, err := unix.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("read the port of a netlink socket: %w", err)
	}
	a, ok := address.(*unix.SockaddrNetlink)
	if !ok {
		return 0, errors.New("read the port of a netlink socket: it is another kind of socket")
	}
	return a.Pid, nil
}

// portOffset is the offset of nlmsg_pid in struct nlmsghdr.
const portOffset = 12

// maxPorts is the number of ports that one filter can name: a jump skips at most 255
// instructions.
const maxPorts = math.MaxUint8

// Without is a socket filter that drops messages of the given ports and accepts all
// others. A datagram with several messages is judged by the first: the kernel puts
// messages of one request into one datagram.
func Without(ports ...uint32) ([]bpf.RawInstruction, error) {
	if len(ports) > maxPorts {
		return nil, fmt.Errorf("filter %d netlink ports: the most is %d", len(ports), maxPorts)
	}
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: portOffset, Size: 4}}
	for i, port := range ports {
		// to the last instruction, over the other comparisons and the one that accepts
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: loaded(port), SkipTrue: uint8(len(ports) - i)})
	}
	program = append(program, bpf.RetConstant{Val: math.MaxUint32}, bpf.RetConstant{Val: 0})
	return bpf.Assemble(program)
}

// loaded is a port ID as the filter loads it: netlink uses the byte order of the machine,
// a filter that of the network.
func loaded(port uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
}

// Attach makes a socket drop messages of the given ports.
func Attach(fd int, ports ...uint32) error {
	raw, err := Without(ports...)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, x := range raw {
		filter[i] = unix.SockFilter{Code: x.Op, Jt: x.Jt, Jf: x.Jf, K: x.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
		return fmt.Errorf("attach a filter to a netlink socket: %w", err)
	}
	return nil
}
