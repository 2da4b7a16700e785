package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	mdns "github.com/miekg/dns"
)

// instances is a Names of one instance with both families.
type instances struct{}

const host = "ip-10-0-1-5.us-west-2.compute.internal."

func (instances) Forward(name string) ([]netip.Addr, bool) {
	if name == host {
		return []netip.Addr{netip.MustParseAddr("10.0.1.5"), netip.MustParseAddr("fd10::5")}, true
	}
	return nil, false
}

func (instances) Reverse(a netip.Addr) (string, bool) {
	return host, a == netip.MustParseAddr("10.0.1.5") || a == netip.MustParseAddr("fd10::5")
}

func platform() Static {
	many := make([]netip.Addr, 100)
	for n := range many {
		many[n] = netip.AddrFrom4([4]byte{10, 1, 0, byte(n)})
	}
	return Static{
		"ec2.us-west-2.amazonaws.com.": {netip.MustParseAddr("198.51.100.2")},
		"many.internet.test.":          many,
	}
}

// start serves on loopback, both transports on one port, until the test ends.
func start(t *testing.T) (address string) {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(Chain{instances{}, platform()}, nil).Serve(ctx, udp, tcp) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return tcp.Addr().String()
}

func exchange(t *testing.T, network, address string, query *mdns.Msg) *mdns.Msg {
	t.Helper()
	reply, _, err := (&mdns.Client{Net: network}).Exchange(query, address)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func question(name string, kind uint16) *mdns.Msg { return new(mdns.Msg).SetQuestion(name, kind) }

func TestQuestionsAreAnsweredOrRefusedWithTheRightCode(t *testing.T) {
	address := start(t)
	for _, try := range []struct {
		name   string
		kind   uint16
		code   int
		answer string // of the first record; empty: none
	}{
		{host, mdns.TypeA, mdns.RcodeSuccess, "10.0.1.5"},
		{"IP-10-0-1-5.us-west-2.Compute.internal.", mdns.TypeA, mdns.RcodeSuccess, "10.0.1.5"},
		{host, mdns.TypeAAAA, mdns.RcodeSuccess, "fd10::5"},
		{host, mdns.TypeMX, mdns.RcodeSuccess, ""},
		{"5.1.0.10.in-addr.arpa.", mdns.TypePTR, mdns.RcodeSuccess, host},
		{"5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.d.f.ip6.arpa.", mdns.TypePTR, mdns.RcodeSuccess, host},
		{"5.1.0.10.in-addr.arpa.", mdns.TypeA, mdns.RcodeSuccess, ""},
		{"6.1.0.10.in-addr.arpa.", mdns.TypePTR, mdns.RcodeNameError, ""},
		{"1.0.10.in-addr.arpa.", mdns.TypePTR, mdns.RcodeSuccess, ""},
		{"0.5.1.0.10.in-addr.arpa.", mdns.TypePTR, mdns.RcodeNameError, ""},
		{"x.1.0.10.in-addr.arpa.", mdns.TypePTR, mdns.RcodeNameError, ""},
		{"999.1.0.10.in-addr.arpa.", mdns.TypePTR, mdns.RcodeNameError, ""},
		{"ec2.us-west-2.amazonaws.com.", mdns.TypeA, mdns.RcodeSuccess, "198.51.100.2"},
		{"ec2.us-west-2.amazonaws.com.", mdns.TypeAAAA, mdns.RcodeSuccess, ""},
		{"us-west-2.amazonaws.com.", mdns.TypeA, mdns.RcodeSuccess, ""},
		{"sqs.us-west-2.amazonaws.com.", mdns.TypeA, mdns.RcodeNameError, ""},
		{"ip-10-0-1-6.us-west-2.compute.internal.", mdns.TypeA, mdns.RcodeNameError, ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			reply := exchange(t, network, address, question(try.name, try.kind))
			got := ""
			if len(reply.Answer) > 0 {
				switch rr := reply.Answer[0].(type) {
				case *mdns.A:
					got = rr.A.String()
				case *mdns.AAAA:
					got = rr.AAAA.String()
				case *mdns.PTR:
					got = rr.Ptr
				}
			}
			if reply.Rcode != try.code || got != try.answer {
				t.Errorf("%s %s over %s: %s %q, want %s %q", try.name, mdns.TypeToString[try.kind], network,
					mdns.RcodeToString[reply.Rcode], got, mdns.RcodeToString[try.code], try.answer)
			}
			if !reply.RecursionAvailable {
				t.Errorf("%s: recursion is not offered; stub resolvers would query other servers", try.name)
			}
			if negative := len(reply.Ns) == 1; negative != (try.answer == "") {
				t.Errorf("%s: SOA record: %v", try.name, negative)
			}
		}
	}
}

func TestLongAnswerIsTruncatedOnlyOverPlainUDP(t *testing.T) {
	address := start(t)
	small := exchange(t, "udp", address, question("many.internet.test.", mdns.TypeA))
	small.Compress = true // as it was on the wire
	if !small.Truncated || small.Len() > mdns.MinMsgSize {
		t.Errorf("plain UDP: truncated %v, %d bytes", small.Truncated, small.Len())
	}
	if whole := exchange(t, "tcp", address, question("many.internet.test.", mdns.TypeA)); whole.Truncated || len(whole.Answer) != 100 {
		t.Errorf("TCP: truncated %v, %d answers", whole.Truncated, len(whole.Answer))
	}
	large := question("many.internet.test.", mdns.TypeA)
	large.SetEdns0(4096, false)
	reply := exchange(t, "udp", address, large)
	if reply.Truncated || len(reply.Answer) != 100 || reply.IsEdns0() == nil {
		t.Errorf("UDP with EDNS: truncated %v, %d answers, EDNS %v", reply.Truncated, len(reply.Answer), reply.IsEdns0())
	}
}

func TestUnsupportedMessagesGetTheirErrorCode(t *testing.T) {
	address := start(t)
	update := question(host, mdns.TypeA)
	update.Opcode = mdns.OpcodeUpdate
	chaos := question("version.bind.", mdns.TypeTXT)
	chaos.Question[0].Qclass = mdns.ClassCHAOS
	future := question(host, mdns.TypeA)
	future.SetEdns0(1232, false)
	future.IsEdns0().SetVersion(1)
	for _, try := range []struct {
		query *mdns.Msg
		code  int
	}{
		{update, mdns.RcodeNotImplemented}, {chaos, mdns.RcodeRefused}, {future, mdns.RcodeBadVers},
	} {
		if reply := exchange(t, "udp", address, try.query); reply.Rcode != try.code {
			t.Errorf("%v: %s, want %s", try.query.Question, mdns.RcodeToString[reply.Rcode], mdns.RcodeToString[try.code])
		}
	}
}

func TestGoResolverReadsTheAnswers(t *testing.T) {
	address := start(t)
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	found, err := r.LookupNetIP(t.Context(), "ip", host)
	if err != nil || len(found) != 2 {
		t.Errorf("lookup: %v, %v", found, err)
	}
	names, err := r.LookupAddr(t.Context(), "10.0.1.5")
	if err != nil || fmt.Sprint(names) != "["+host+"]" {
		t.Errorf("reverse lookup: %v, %v", names, err)
	}
}

func TestServeEndsAtOnceWithACancelledContext(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := New(instances{}, nil).Serve(ctx, nil, l); err != nil {
		t.Error(err)
	}
}

// FuzzReverse parses any name as a reverse name and compares the address found with
// the library's reverse name of it.
func FuzzReverse(f *testing.F) {
	for _, seed := range []string{"5.1.0.10.in-addr.arpa.", "b.a.ip6.arpa.", "ip6.arpa.", "..in-addr.arpa.", "01.1.1.1.in-addr.arpa."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		a, _, ok := reverseAddress(name)
		if !ok {
			return
		}
		if back, err := mdns.ReverseAddr(a.String()); err != nil || back != name {
			if a.Is6() && a.Is4In6() {
				return // the library writes these in the IPv4 form
			}
			t.Errorf("%q read as %s, which is written %q (%v)", name, a, back, err)
		}
	})
}
