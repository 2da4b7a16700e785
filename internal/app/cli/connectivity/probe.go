package connectivity

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Answer is a server pod's answer to one request.
type Answer struct {
	Pod    string         `json:"pod"`
	Node   string         `json:"node"`
	Source netip.AddrPort `json:"source"`
}

// Result is the output of `workload dial`.
type Result struct {
	OK        bool           `json:"ok"`
	Target    string         `json:"target"`
	Bytes     int            `json:"bytes"`
	Source    netip.AddrPort `json:"source"`
	Server    *Answer        `json:"server"`
	Kind      string         `json:"kind"`
	Error     string         `json:"error"`
	MTU       int            `json:"mtu"`
	Addresses []netip.Addr   `json:"addresses"`
	Status    int            `json:"status"`
	Instance  string         `json:"instance"`
	Sent      int            `json:"sent"`
	Seen      int            `json:"seen"`
	Stream    *Stream        `json:"stream"`
}

// Stream is a report on a stream of numbered messages.
type Stream struct {
	Sent             uint64   `json:"sent"`
	Received         uint64   `json:"received"`
	Lost             uint64   `json:"lost"`
	FirstLost        []uint64 `json:"firstLost"`
	LongestGapMicros int64    `json:"longestGapMicros"`
	LongestGapAt     uint64   `json:"longestGapAt"`
	Interrupted      bool     `json:"interrupted"`
}

// kindTooBig is the workload's kind of failure for a packet above the path's MTU.
const kindTooBig = "too-big"

// summary describes the result in a few words.
func (r Result) summary() string {
	switch {
	case r.OK && r.Server != nil:
		return fmt.Sprintf("an answer from %s, which saw source %s", r.Server.Pod, r.Source.Addr())
	case r.OK:
		return "an answer"
	case r.Status != 0:
		return fmt.Sprintf("HTTP status %d (%s)", r.Status, r.Error)
	}
	return strings.TrimSpace(r.Kind + " " + r.Error)
}

// Failure is the reason why a case failed.
type Failure struct {
	Sent  string
	Got   string
	Want  string
	Hints []string // commands and things to inspect
}

func (f *Failure) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sent %s; got %s", f.Sent, f.Got)
	if f.Want != "" {
		fmt.Fprintf(&b, "; want %s", f.Want)
	}
	for _, h := range f.Hints {
		fmt.Fprintf(&b, "\ninspect: %s", h)
	}
	return b.String()
}

// dialTimeout bounds one dial inside the pod.
const dialTimeout = 5 * time.Second

// payload is a size and a protocol to transfer it by.
type payload struct {
	name string
	what string // for messages
	// args returns dial's arguments for a server with these ports.
	args func(target netip.Addr, p ports) []string
}

// ports of a server.
type ports struct{ HTTP, TCP, UDP int }

func hostport(a netip.Addr, port int) string {
	return netip.AddrPortFrom(a, uint16(port)).String()
}

// largePayload returns the size in bytes of a large datagram for a path: 8,900 for an
// MTU of 9,001. The rest is for headers, also those of encapsulation.
func largePayload(mtu int) int { return mtu - 101 }

// datagramHeaders is the size of the IPv4 and UDP headers, in bytes.
const datagramHeaders = 28

// payloads returns the payloads that every path between pods must carry. mtu is the
// path's, in bytes.
func payloads(mtu int) []payload {
	large := largePayload(mtu)
	timeout := "--timeout=" + dialTimeout.String()
	return []payload{
		{"1B", "1 B by TCP", func(a netip.Addr, p ports) []string {
			return []string{"tcp", hostport(a, p.TCP), "--size=1", timeout}
		}},
		{strconv.Itoa(large) + "B-df", fmt.Sprintf("%d B by UDP with DF", large), func(a netip.Addr, p ports) []string {
			return []string{"udp", hostport(a, p.UDP), "--size=" + strconv.Itoa(large), "--chunk=" + strconv.Itoa(large), "--df", timeout}
		}},
		{"1MB", "1 MB by HTTP", func(a netip.Addr, p ports) []string {
			return []string{"http", hostport(a, p.HTTP), "--size=1048576", timeout}
		}},
	}
}
