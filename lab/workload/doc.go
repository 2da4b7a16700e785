// Package workload is the test program of the lab's pods: one static binary with a test
// server and test clients, and with the parts of tar, cat, ls, test, sleep, env, true and
// false that `kubectl cp` and `kubectl exec` need in an image without a shell. The image
// is trunkline.dev/workload:<version>. Its entry point is /workload; /bin/tar and the
// other applets are links to it.
//
// It reports observations; its caller evaluates them. It uses sockets of its network
// namespace and, in tar, files. Pods of the lab and of `trunkline connectivity test` run
// it. The latter parses the JSON below with its own types, so fields are only added.
//
// # serve
//
//	workload serve [--http :8080] [--tcp :8081] [--udp :8082]
//
// Listens on all addresses of both families until SIGTERM, then exits with 0. An empty
// address disables a listener. The pod's identity is read from the environment: POD_NAME
// (default: the host name), POD_NAMESPACE, NODE_NAME.
//
// HTTP: GET / returns an Answer. POST /echo returns the request's body, with the Answer
// in the header Trunkline-Answer. GET /bytes?n=N returns N bytes. GET /seen?token=T
// returns the Received datagrams with token T. GET /healthz returns 200.
//
// TCP: the server first writes its Answer as one line, then echoes all bytes until the
// client closes its half. A stream may stay open for hours.
//
// UDP: the server answers each datagram with one: the Answer as one line, then the first
// 64 bytes of the request, then more of it until both have the same length. Answers have
// DF set, as requests with --df do.
//
// # dial
//
//	workload dial http   HOST:PORT [--size N] [--timeout 5s]
//	workload dial tcp    HOST:PORT [--size N] [--timeout 5s]
//	workload dial udp    HOST:PORT [--size N] [--df] [--chunk 8900] [--timeout 5s]
//	workload dial stream HOST:PORT [--proto tcp|udp] [--duration 10s] [--interval 10ms] [--report 0s]
//	workload dial pmtu   HOST:PORT [--timeout 5s]
//	workload dial dns    NAME      [--server ADDRESS:53] [--timeout 5s]
//	workload dial imds   [--endpoint http://169.254.169.254] [--timeout 2s]
//	workload dial spoof  HOST:PORT [--source ADDRESS] [--mac MAC] [--count 3] [--verify HOST:PORT] [--timeout 5s]
//
// Each prints one Result as one line of JSON on stdout and exits with 0 if Result.OK, 1 if
// not, and 2 after an error of the command line (usage on stderr, no JSON). With
// --repeat N it runs N times, prints one line each, and exits with 1 if any result was
// not OK. The port of http and of spoof's --verify is that of serve --http; the port of
// tcp, stream and pmtu (udp) that of the protocol.
//
// --size is the payload in bytes, sent and expected back; http and tcp compare all bytes.
// udp sends payloads above --chunk as several datagrams and repeats a lost one up to
// three times (Result.Retries). --df forbids fragments: a datagram that is too large ends
// with Kind "too-big" and the path's MTU in Result.MTU. TCP always forbids fragments;
// Result.MSS is the segment size.
//
// stream sends a numbered record every interval over one connection, which it never
// reopens, and expects each number back; see Stream. It also ends with a result at
// SIGTERM or SIGINT. With --report it prints an intermediate Result at that interval.
//
// spoof sends datagrams with a foreign source address or MAC and a random token to a UDP
// server; without these flags it sends them from the pod's own address, as a control. Then
// it queries the HTTP server at --verify over an ordinary connection. OK means that the
// datagrams were sent; Result.Seen is the number that the server received. It needs
// CAP_NET_RAW.
//
// # observe and attempt
//
//	workload observe [--http :8080] [--call CIDR,…]
//	workload attempt [--rare] OBSERVER
//
// attempt sends its pod's name to the observer from its first instruction on: every 20 ms a datagram
// to the ports 9000 and 9001, and every 200 ms a connection to port 9000; with --rare it does so 20 times
// more rarely after 5 s, for hundreds of pods on one machine. It answers datagrams at its
// own port 9002 with its name. observe counts what arrives: at port 9000, which the security groups
// of a pod deny, at 9001, which they allow, and answers to its calls of all addresses at port 9002,
// which they deny. HTTP: GET / returns the Observed of each pod. So a packet that a pod should not
// have sent or received is counted on the observer's side, and none is missed between two requests.
//
// # Links
//
// Called as tar: cf - PATH… and xf - [-C DIR] with -m, -p,
// --no-same-permissions and --no-same-owner, operations with or without the dash.
// Called as test: -d, -e and -f. The other applets are those of coreutils without
// options, except ls -l and -a.
package workload

import "net/netip"

// Answer is a server's description of one exchange.
type Answer struct {
	Pod       string `json:"pod"`
	Namespace string `json:"namespace,omitempty"`
	Node      string `json:"node,omitempty"`
	// Address is the server's address in the exchange; unspecified for UDP.
	Address netip.AddrPort `json:"address"`
	// Source is the client's address as seen by the server.
	Source netip.AddrPort `json:"source"`
	// Bytes and SHA256 (hex) describe the request's payload if the server sends the
	// answer after it (HTTP, UDP).
	Bytes  int    `json:"bytes,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// Kind is the reason of a failed dial, for callers that branch on it.
type Kind string

// Kinds of failure.
const (
	KindTimeout     Kind = "timeout"     // no answer in time
	KindRefused     Kind = "refused"     // connection refused: the host answered, no process listens
	KindUnreachable Kind = "unreachable" // no route, or an ICMP unreachable
	KindTooBig      Kind = "too-big"     // DF set and larger than the path's MTU
	KindReset       Kind = "reset"       // connection reset or closed early
	KindDenied      Kind = "denied"      // the kernel refused to send: EPERM, EACCES
	KindNotFound    Kind = "not-found"   // DNS: no such name
	KindMismatch    Kind = "mismatch"    // the answer does not match the request
	KindOther       Kind = "other"
)

// Result is the output of dial.
type Result struct {
	OK     bool   `json:"ok"`
	Probe  string `json:"probe"` // http, tcp, udp, stream, pmtu, dns, imds, spoof
	Target string `json:"target"`
	Bytes  int    `json:"bytes,omitempty"` // payload sent, and received when OK
	// Source is the client's address as seen by the server, Local the client's own. They
	// differ if the address is translated on the path.
	Source netip.AddrPort `json:"source"`
	Local  netip.AddrPort `json:"local"`
	// Server is the server's answer.
	Server *Answer `json:"server,omitempty"`
	// LatencyMicros is the time from the start to the last byte of the answer.
	LatencyMicros int64  `json:"latencyMicros"`
	Kind          Kind   `json:"kind,omitempty"`
	Error         string `json:"error,omitempty"`

	Retries   int          `json:"retries,omitempty"`   // udp
	MTU       int          `json:"mtu,omitempty"`       // udp --df, pmtu: of the path, bytes
	MSS       int          `json:"mss,omitempty"`       // tcp, bytes
	Addresses []netip.Addr `json:"addresses,omitempty"` // dns
	Status    int          `json:"status,omitempty"`    // http, imds: HTTP status
	Instance  string       `json:"instance,omitempty"`  // imds: the instance ID
	Sent      int          `json:"sent,omitempty"`      // spoof
	Seen      int          `json:"seen"`                // spoof: number received by the server
	Token     string       `json:"token,omitempty"`     // spoof
	Stream    *Stream      `json:"stream,omitempty"`    // stream
}

// Stream is the result of a long-lived stream. OK means that no number was lost and the
// stream was not interrupted.
type Stream struct {
	Sent     uint64 `json:"sent"`     // numbers sent
	Received uint64 `json:"received"` // distinct numbers that returned
	// Lost counts numbers that did not return: those sent more than two seconds before
	// the end (udp) or all (tcp).
	Lost uint64 `json:"lost"`
	// FirstLost are the first lost numbers, at most 16.
	FirstLost  []uint64 `json:"firstLost,omitempty"`
	Duplicates uint64   `json:"duplicates,omitempty"`
	// LongestGapMicros is the longest time between two arrivals, and
	// LongestGapAt the number that ended it.
	LongestGapMicros int64  `json:"longestGapMicros"`
	LongestGapAt     uint64 `json:"longestGapAt"`
	DurationMicros   int64  `json:"durationMicros"`
	// Interrupted is true if the connection ended early.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Received describes the datagrams with a token that a server received.
type Received struct {
	Token   string           `json:"token"`
	Count   int              `json:"count"`
	Sources []netip.AddrPort `json:"sources,omitempty"`
}

// Default ports of serve.
const (
	HTTPPort = 8080
	TCPPort  = 8081
	UDPPort  = 8082
)
