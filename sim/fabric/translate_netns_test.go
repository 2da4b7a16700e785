//go:build netns

package fabric

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An elastic address replaces the private one beyond the gateway, both ways, and what goes
// through the gateway ends with it; connections inside the VPC stay.
func TestElasticAddressesAreTranslatedAtTheGateway(t *testing.T) {
	w := internet(t)
	a := w.plug("eni-a", "10.0.0.10")
	b := w.plug("eni-b", "10.0.16.11")
	outside := w.host(w.fabric.InternetName())
	private, first, second := addrs("10.0.0.10")[0], addrs("198.18.0.1")[0], addrs("198.18.0.2")[0]
	use := func(public ...Public) {
		w.at("eni-a").Public = public
		w.apply()
	}
	use(Public{private, first})
	a.serveTCP("10.0.0.10:80")
	outside.serveTCP("203.0.113.10:80")
	if got := netip.MustParseAddrPort(a.reaches("", "203.0.113.10:7000")).Addr(); got != first {
		t.Errorf("the outside host saw %s, want %s", got, first)
	}
	inward, err := outside.connect("198.18.0.1:80", replyTimeout)
	w.must(err)
	w.must(echo(inward, "inward", replyTimeout))
	outward, err := a.connect("203.0.113.10:80", replyTimeout)
	w.must(err)
	w.must(echo(outward, "outward", replyTimeout))
	var socket net.Conn // that stays, as a resolver's does
	w.must(a.Run(func() (err error) {
		socket, err = net.Dial("udp", "203.0.113.10:7000")
		return err
	}))
	for _, c := range []net.Conn{inward, outward, socket} {
		defer c.Close()
	}
	seen := func() netip.Addr {
		buffer := make([]byte, 64)
		_ = socket.SetDeadline(time.Now().Add(replyTimeout))
		_, err := socket.Write([]byte{1})
		w.must(err)
		n, err := socket.Read(buffer)
		w.must(err)
		return netip.MustParseAddrPort(string(buffer[:n])).Addr()
	}
	if got := seen(); got != first {
		t.Errorf("the outside host saw the socket at %s, want %s", got, first)
	}
	local, err := b.connect("10.0.0.10:80", replyTimeout)
	w.must(err)
	defer local.Close()
	w.must(echo(local, "inside", replyTimeout))
	if c, err := outside.connect("10.0.0.10:80", silence); err == nil {
		t.Errorf("the outside host reaches the private address: %v", c.RemoteAddr())
	}
	// The error of a closed port comes back through the translation.
	if _, err := a.ask("", "203.0.113.10:7001", 10, replyTimeout); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a datagram to a closed port outside: %v, want refused", err)
	}

	before := w.fabric.changes
	w.apply()
	if w.fabric.changes != before {
		t.Errorf("%d changes by a second Apply", w.fabric.changes-before)
	}

	use(Public{private, second})
	if got := netip.MustParseAddrPort(a.reaches("", "203.0.113.10:7000")).Addr(); got != second {
		t.Errorf("the outside host saw %s, want %s", got, second)
	}
	if got := seen(); got != second {
		t.Errorf("the outside host saw the socket at %s, want %s", got, second)
	}
	for name, c := range map[string]net.Conn{"inward": inward, "outward": outward} {
		if err := echo(c, name, silence); err == nil {
			t.Errorf("the %s connection by the address that left goes on", name)
		}
	}
	w.must(echo(local, "still inside", replyTimeout))
	use()
	a.silent("", "203.0.113.10:7000")
	if _, err := outside.connect("198.18.0.2:80", silence); err == nil {
		t.Error("the outside host reaches an address that left")
	}
	w.must(echo(local, "to the end", replyTimeout))
}
