package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Judgement is what the loaded programs decide about a packet at one endpoint.
type Judgement struct {
	Allowed          bool
	Set              uint32
	Class, PortClass uint32
	Reason           Reason // of a deny
	New              bool   // judged as a new connection, not by an entry
}

// Question is a packet at one endpoint.
type Question struct {
	Endpoint    endpoint.ID
	Direction   Direction // of the packet
	Connections bool      // it may belong to a connection; else it is judged as if it opened one
	Reply       bool      // conntrack counts it as a reply
	Packet      []byte    // with an Ethernet header
}

// context is the beginning of struct __sk_buff. The kernel fails if there is no space for the rest
// of it, of which it had 192 bytes until Linux 6.18.
type context struct {
	Len, PktType, Mark, QueueMapping, Protocol, VlanPresent, VlanTCI, VlanProto uint32
	Priority, IngressIfindex, Ifindex, TCIndex                                  uint32
	CB                                                                          [5]uint32
	_                                                                           [256 - 17*4]byte
}

// Judge runs the program that decides as forward does, in the kernel and without side effects.
func (d *Datapath) Judge(q Question) (Judgement, error) {
	in := context{CB: [5]uint32{uint32(q.Endpoint), uint32(q.Direction)}}
	if q.Connections {
		in.CB[2] = 1
	}
	if q.Reply {
		in.Mark = hostnet.MarkJudged
	}
	var out context
	verdict, err := d.programs[judge].Run(&ebpf.RunOptions{Data: q.Packet, Context: &in, ContextOut: &out})
	if err != nil {
		return Judgement{}, fmt.Errorf("judge a packet at endpoint %d: %w", q.Endpoint, err)
	}
	return Judgement{verdict == 1, out.CB[0], out.CB[1], out.CB[2], Reason(out.CB[3]), out.CB[4] == 1}, nil
}
