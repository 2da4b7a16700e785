package bpf

import (
	"bytes"
	"net/netip"
	"reflect"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// record is a valid one; each field has a value of its own.
func record() []byte {
	raw := make([]byte, flowSize)
	for i := range raw {
		raw[i] = byte(i + 1)
	}
	copy(raw[7:], []byte{0})                        // the time is positive
	copy(raw[8:], make([]byte, 10))                 // mapped source
	copy(raw[18:], []byte{0xff, 0xff, 10, 0, 0, 1}) //
	copy(raw[44:], []byte{2, 1, 6, 1, 1, 0})        // endpoint, protocol, direction, verdict, reason
	return raw
}

func TestARecordIsDecodedWhereCWritesIt(t *testing.T) {
	f, err := decodeFlow(record())
	if err != nil {
		t.Fatal(err)
	}
	if f.Source != netip.MustParseAddrPort("10.0.0.1:10793") || f.Destination.Port() != 0x2c2b || f.Endpoint != 0x102 || f.Direction != Egress || !f.Allowed || f.Packet.Protocol != 6 || f.Packet.Length != 0x3433 || f.Set != 0x38373635 || f.Class != 0x3c3b3a39 || f.PortClass != 0x403f3e3d || f.Lost != 0x44434241 {
		t.Errorf("%+v", f)
	}
	spec, err := object()
	if err != nil {
		t.Fatal(err)
	}
	var s *btf.Struct
	if err := spec.Types.TypeByName("flow", &s); err != nil {
		t.Fatal(err)
	}
	offsets := map[string]uint32{}
	for _, m := range s.Members {
		offsets[m.Name] = m.Offset.Bytes()
	}
	want := map[string]uint32{
		"time": 0, "source": 8, "destination": 24, "source_port": 40, "destination_port": 42, "endpoint": 44, "protocol": 46, "direction": 47,
		"verdict": 48, "reason": 49, "length": 50, "set": 52, "class": 56, "port_class": 60, "lost": 64, "pad": 68,
	}
	if !reflect.DeepEqual(offsets, want) {
		t.Errorf("struct flow is %v, decoded as %v", offsets, want)
	}
}

func TestADamagedRecordIsRefused(t *testing.T) {
	for what, raw := range map[string][]byte{
		"empty": nil, "short": record()[1:], "long": append(record(), 0),
		"a direction of 2": at(47, 2), "a verdict of 2": at(48, 2), "an unknown reason": at(49, byte(reasons)), "a time before the start": at(7, 0x80),
		"an endpoint beyond the last": at(45, 0x40),
	} {
		if f, err := decodeFlow(raw); err == nil {
			t.Errorf("%s: %+v", what, f)
		}
	}
}

// at is a record with another byte.
func at(i int, b byte) []byte {
	raw := record()
	raw[i] = b
	return raw
}

func FuzzDecodeFlow(f *testing.F) {
	f.Add(record())
	f.Add(make([]byte, flowSize))
	f.Fuzz(func(t *testing.T, raw []byte) {
		before := bytes.Clone(raw)
		flow, err := decodeFlow(raw)
		if !bytes.Equal(raw, before) {
			t.Error("the record was changed")
		}
		if err == nil && (!flow.Source.IsValid() || !flow.Destination.IsValid() || flow.Direction.String() == "" || flow.Reason >= reasons) {
			t.Errorf("%x: %+v", raw, flow)
		}
	})
}
