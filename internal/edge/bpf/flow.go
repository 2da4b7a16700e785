package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// Flow is a record of the flow log: a packet that was denied, or the first one of a connection.
type Flow struct {
	Time                time.Duration // of CLOCK_MONOTONIC: compare Monotonic
	Source, Destination netip.AddrPort
	Packet              FlowPacket
	Endpoint            endpoint.ID // the one that judged; 0: neither address is one of this node
	Direction           Direction
	Allowed             bool
	Reason              Reason
	Set                 uint32
	Class, PortClass    uint32
	Lost                uint32 // records before this one that the kernel withheld on its processor
}

// FlowPacket is what a record has of the packet itself.
type FlowPacket struct {
	Protocol   uint8
	Type, Code uint8 // of ICMP; the ports are 0
	Length     uint16
}

// flowSize is that of struct flow.
const flowSize = 72

// decodeFlow decodes a record.
func decodeFlow(raw []byte) (Flow, error) {
	if len(raw) != flowSize {
		return Flow{}, fmt.Errorf("%w: %d bytes, want %d", ErrRecord, len(raw), flowSize)
	}
	u16, u32 := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32
	f := Flow{
		Time:      time.Duration(binary.LittleEndian.Uint64(raw)),
		Packet:    FlowPacket{Protocol: raw[46], Length: u16(raw[50:])},
		Endpoint:  endpoint.ID(u16(raw[44:])),
		Direction: Direction(raw[47]),
		Allowed:   raw[48] == 1,
		Reason:    Reason(raw[49]),
		Set:       u32(raw[52:]),
		Class:     u32(raw[56:]), PortClass: u32(raw[60:]),
		Lost: u32(raw[64:]),
	}
	if f.Direction > Egress || raw[48] > 1 || f.Reason >= reasons || f.Time < 0 || f.Endpoint > endpoint.MaxID {
		return Flow{}, fmt.Errorf("%w: direction %d, verdict %d, reason %d, endpoint %d: out of range", ErrRecord, raw[47], raw[48], raw[49], f.Endpoint)
	}
	source, destination := u16(raw[40:]), u16(raw[42:])
	if f.Packet.icmp() {
		f.Packet.Type, f.Packet.Code = uint8(source), uint8(destination)
		source, destination = 0, 0
	}
	f.Source = netip.AddrPortFrom(Address(raw[8:24]).Addr(), source)
	f.Destination = netip.AddrPortFrom(Address(raw[24:40]).Addr(), destination)
	return f, nil
}

func (p FlowPacket) icmp() bool { return p.Protocol == 1 || p.Protocol == 58 }

// Flows reads the flow log. One reader at a time gets each record once.
type Flows struct{ reader *ringbuf.Reader }

// Flows returns a reader of the flow log.
func (d *Datapath) Flows() (*Flows, error) {
	reader, err := ringbuf.NewReader(d.raw["tl_flows"])
	if err != nil {
		return nil, fmt.Errorf("open flow log: %w", err)
	}
	return &Flows{reader}, nil
}

// ErrNoFlow is returned when no record came until the deadline.
var ErrNoFlow = errors.New("no flow record")

// ErrRecord is returned for a record that is not one of these programs.
var ErrRecord = errors.New("decode flow record")

// ErrFlowsClosed is returned after Close.
var ErrFlowsClosed = errors.New("the flow log's reader is closed")

// Next waits for the next record until a deadline, zero for none.
func (f *Flows) Next(deadline time.Time) (Flow, error) {
	f.reader.SetDeadline(deadline)
	record, err := f.reader.Read()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Flow{}, ErrNoFlow
	case errors.Is(err, ringbuf.ErrClosed):
		return Flow{}, ErrFlowsClosed
	case err != nil:
		return Flow{}, fmt.Errorf("read flow log: %w", err)
	}
	return decodeFlow(record.RawSample)
}

// Close ends Next, and releases the reader.
func (f *Flows) Close() error { return f.reader.Close() }
