package journal

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"testing"
)

func TestALineIsEncodedAsByEncodingJSON(t *testing.T) {
	h := &header{Version: formatVersion, BootID: `b"1`}
	for _, l := range []line{
		{},
		{Header: h},
		{Records: []Record{put(t, "k", 1)}},
		{Header: h, Records: []Record{put(t, "a<\n", "x\n<>&\u2028"), Forget("b"), {Key: "c", Value: json.RawMessage("")}, put(t, "d", nil)}},
		{Records: []Record{{Key: "indented", Value: json.RawMessage("{\n \"a\": [\n1\r\n]}")}}},
	} {
		body, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%08x %s\n", crc32.Checksum(body, castagnoli), body)
		if got, err := encode(l); err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
}

// BenchmarkEncode encodes what an ADD writes first.
func BenchmarkEncode(b *testing.B) {
	l := line{Records: []Record{
		put(b, "ledger/ip/10.0.18.190", json.RawMessage(`{"op":"address","address":{"addr":"10.0.18.190","eni":"eni-0a1b2c3d4e5f60718","state":"assigned","holder":{"endpoint":29,"pod":{"namespace":"default","name":"ours29","uid":"uid-ours29"}},"since":"2026-11-26T21:29:40.264Z"}}`)),
		put(b, "last-endpoint-id", 29),
		put(b, "endpoint/29", json.RawMessage(`{"id":29,"key":{"containerID":"ours29","ifName":"eth0"},"pod":{"namespace":"default","name":"ours29","uid":"uid-ours29"},"network":"trunkline","addresses":{"ipv4":"10.0.18.190"},"attachment":{"kind":"secondary","interface":"eni-0a1b2c3d4e5f60718","table":2},"hostMAC":"0a:58:0a:00:12:be","podMAC":"0a:58:0a:00:12:bf","link":"enib6d9ad9e6d4","mtu":9001,"stage":"wiring","generation":1}`)),
	}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := encode(l); err != nil {
			b.Fatal(err)
		}
	}
}
