// Package workload is the test program the lab's pods run: one static binary
// that serves and dials, and carries just enough of tar, cat, ls, test, sleep,
// env, true and false for `kubectl cp` and `kubectl exec` in an image without a
// shell. The image is trunkline.dev/workload:<version>; its entry point is
// /workload, and /bin/tar and its like are links to it.
//
// It decides nothing: it reports what it saw, and whoever reads the report
// judges. It touches sockets of its own network namespace and, in tar, files.
// Pods of the lab and `trunkline connectivity test` run it; the latter parses
// the JSON below with structs of its own, so fields are only ever added.
//
// # serve
//
//	workload serve [--http :8080] [--tcp :8081] [--udp :8082]
//
// Listens on every address of both families until SIGTERM, then ends with 0.
// An empty address leaves a listener out. The pod learns its name from the
// environment: POD_NAME (else the host name), POD_NAMESPACE, NODE_NAME.
//
// HTTP: GET / answers an Answer. POST /echo answers the body that was sent, with
// the Answer in the header Trunkline-Answer. GET /bytes?n=N answers N bytes.
// GET /seen?token=T answers a Sighting of the datagrams that carried T.
// GET /healthz answers 200.
//
// TCP: the server first writes its Answer as one line, then echoes every byte
// until the client closes its half. A stream may stay open for hours.
//
// UDP: each datagram is answered by one: the Answer as one line, then the first
// 64 bytes of the datagram, then more of it until the answer is as long as the
// request was. Answers carry DF, as requests with --df do.
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
// Each prints one Result as one line of JSON on stdout and ends with 0 when
// Result.OK, 1 when not, 2 when the command line is wrong (usage on stderr, no
// JSON). With --repeat N it does so N times, one line each, and ends with 1 when
// any was not OK. The port of http and spoof's --verify is serve's --http; of
// tcp, stream and pmtu (udp) those of their protocol.
//
// --size is the payload in bytes, sent and expected back; http and tcp compare
// every byte. udp sends payloads above --chunk as several datagrams and repeats
// a lost one up to three times (Result.Retries). --df forbids fragments: what
// does not fit ends with Kind "too-big" and Result.MTU, the path's MTU. TCP
// always forbids them; Result.MSS tells the segment size.
//
// stream sends a numbered record every interval on one connection that is never
// re-opened and expects each number back; see Stream. It also ends, with its
// result, at SIGTERM or SIGINT. With --report it prints a Result at that
// interval (OK as of then) before the last.
//
// spoof sends datagrams to a UDP server with a source address or MAC that is
// not the pod's and a random token inside (with neither flag it sends them as
// itself: the control beside the others), then asks the HTTP server at --verify
// (an ordinary connection) whether they arrived: OK says they were sent, and
// Result.Seen how many of them the receiver saw. It needs CAP_NET_RAW.
//
// # Links
//
// Called as tar: cf - PATH… and xf - [-C DIR] with -m, -p,
// --no-same-permissions and --no-same-owner, names with or without the dash.
// Called as test: -d, -e and -f. The others are those of coreutils without
// options, except ls -l and -a.
package workload

import "net/netip"

// Answer is what a server says about one exchange.
type Answer struct {
	Pod       string `json:"pod"`
	Namespace string `json:"namespace,omitempty"`
	Node      string `json:"node,omitempty"`
	// Address is the server's own end of the exchange; unspecified for UDP.
	Address netip.AddrPort `json:"address"`
	// Source is the client's address as the server saw it.
	Source netip.AddrPort `json:"source"`
	// Bytes and SHA256 (hex) are of the request's payload, where the answer
	// follows it (HTTP, UDP).
	Bytes  int    `json:"bytes,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// Kind says why a dial was not OK, for callers that branch on it.
type Kind string

// Kinds of failure.
const (
	KindTimeout     Kind = "timeout"     // nothing came back in time
	KindRefused     Kind = "refused"     // connection refused: the host answered, nobody listens
	KindUnreachable Kind = "unreachable" // no route, or an ICMP unreachable
	KindTooBig      Kind = "too-big"     // DF set and larger than the path's MTU
	KindReset       Kind = "reset"       // connection reset or closed early
	KindDenied      Kind = "denied"      // the kernel refused to send: EPERM, EACCES
	KindNotFound    Kind = "not-found"   // DNS: no such name
	KindMismatch    Kind = "mismatch"    // the answer was not the one asked for
	KindOther       Kind = "other"
)

// Result is what dial prints.
type Result struct {
	OK     bool   `json:"ok"`
	Probe  string `json:"probe"` // http, tcp, udp, stream, pmtu, dns, imds, spoof
	Target string `json:"target"`
	Bytes  int    `json:"bytes,omitempty"` // payload sent, and received when OK
	// Source is the client's address as the server saw it, Local as the client
	// did: they differ when something on the way translates.
	Source netip.AddrPort `json:"source"`
	Local  netip.AddrPort `json:"local"`
	// Server is the answer of the other end.
	Server *Answer `json:"server,omitempty"`
	// LatencyMicros is from dialling to the last byte of the answer.
	LatencyMicros int64  `json:"latencyMicros"`
	Kind          Kind   `json:"kind,omitempty"`
	Error         string `json:"error,omitempty"`

	Retries   int          `json:"retries,omitempty"`   // udp
	MTU       int          `json:"mtu,omitempty"`       // udp --df, pmtu: of the path, bytes
	MSS       int          `json:"mss,omitempty"`       // tcp, bytes
	Addresses []netip.Addr `json:"addresses,omitempty"` // dns
	Status    int          `json:"status,omitempty"`    // http, imds: HTTP status
	Instance  string       `json:"instance,omitempty"`  // imds: instance id it told
	Sent      int          `json:"sent,omitempty"`      // spoof
	Seen      int          `json:"seen"`                // spoof: how many arrived
	Token     string       `json:"token,omitempty"`     // spoof
	Stream    *Stream      `json:"stream,omitempty"`    // stream
}

// Stream is how a long-lived stream went. OK means none lost and not
// interrupted.
type Stream struct {
	Sent     uint64 `json:"sent"`     // numbers sent
	Received uint64 `json:"received"` // distinct numbers that came back
	Lost     uint64 `json:"lost"`     // sent more than two seconds before the end (udp) or at all (tcp) and never seen
	// FirstLost are the first of them, at most 16.
	FirstLost  []uint64 `json:"firstLost,omitempty"`
	Duplicates uint64   `json:"duplicates,omitempty"`
	// LongestGapMicros is the longest time between two arrivals, and
	// LongestGapAt the number that ended it.
	LongestGapMicros int64  `json:"longestGapMicros"`
	LongestGapAt     uint64 `json:"longestGapAt"`
	DurationMicros   int64  `json:"durationMicros"`
	// Interrupted says that the connection ended before its time.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Sighting tells which datagrams carried a token.
type Sighting struct {
	Token   string           `json:"token"`
	Count   int              `json:"count"`
	Sources []netip.AddrPort `json:"sources,omitempty"`
}

// Ports serve listens on unless told otherwise.
const (
	HTTPPort = 8080
	TCPPort  = 8081
	UDPPort  = 8082
)
