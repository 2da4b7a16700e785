//go:build netns

package fabric

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// exchange is a stream of datagrams, each sent after the reply to the one before or its
// timeout, until stop is closed. It counts replies and losses.
type exchange struct {
	stop           chan struct{}
	done           chan struct{}
	answered, lost int
}

// run sends datagrams and counts until stop is closed.
func (e *exchange) run(c net.Conn, timeout time.Duration) {
	defer close(e.done)
	defer c.Close()
	buffer := make([]byte, 64)
	for {
		select {
		case <-e.stop:
			return
		default:
		}
		_, err := c.Write([]byte("?"))
		_ = c.SetReadDeadline(time.Now().Add(timeout))
		if _, failed := c.Read(buffer); errors.Join(err, failed) != nil {
			e.lost++
			continue
		}
		e.answered++
	}
}

// end stops the exchange and waits for it.
func (e *exchange) end() {
	close(e.stop)
	<-e.done
}

// TestStateChangesNeitherDropAllowedPacketsNorPassRefusedOnes runs one allowed and one
// refused stream while other parts of the state change.
func TestStateChangesNeitherDropAllowedPacketsNorPassRefusedOnes(t *testing.T) {
	w := newWorld(t)
	a, b := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	w.plug("eni-c", "10.0.0.12")
	w.state.Groups = append(w.state.Groups, Group{ID: servers, Egress: w.state.Groups[0].Egress, Ingress: []Rule{udp(7000, 7000, "10.0.0.0/16")}})
	w.at("eni-b").Groups = []vpc.SecurityGroupID{servers}
	w.apply()
	b.serveUDP("10.0.16.11:7000")
	b.serveUDP("10.0.16.11:7001")
	a.reaches("", "10.0.16.11:7000")
	allowed := a.stream("10.0.16.11:7000", replyTimeout)
	refused := a.stream("10.0.16.11:7001", 2*time.Millisecond)
	changes := []func(){
		func() { w.at("eni-c").Addresses = addrs("10.0.0.12", "10.0.0.13") },
		func() { w.at("eni-c").Prefixes = prefixes("10.0.3.16/28", "fd10::5:0:0:0/80") },
		func() { w.group(servers).Ingress = []Rule{udp(7000, 7000, "10.0.0.0/15")} },
		func() { w.at("eni-a").SourceDestCheck = false },
		func() {
			w.state.Subnets[0].Routes = []Route{{Destination: prefixes("192.168.0.0/16")[0], Target: Target{Port: "eni-c"}}}
		},
		func() { w.state.Services = []Service{{Address: vpc.MetadataV4, TCP: []uint16{80}}} },
		func() { w.state.Internet = &Internet{Hosts: addrs("203.0.113.10")} },
		func() { w.at("eni-c").Down = true },
		func() { // another program writes, so that the fabric reads its tables again
			nft(w, "add table ip foreign")
		},
		func() {
			w.at("eni-c").Addresses, w.at("eni-c").Prefixes = addrs("10.0.0.12"), nil
			w.at("eni-c").Down, w.at("eni-a").SourceDestCheck = false, true
			w.group(servers).Ingress = []Rule{udp(7000, 7000, "10.0.0.0/16")}
			w.state.Subnets[0].Routes, w.state.Services, w.state.Internet = nil, nil, nil
		},
	}
	for range 5 {
		for _, change := range changes {
			change()
			w.apply()
		}
	}
	allowed.end()
	refused.end()
	if allowed.lost > 0 || allowed.answered < 100 {
		t.Errorf("the allowed stream: %d answered, %d lost; want many and none", allowed.answered, allowed.lost)
	}
	if refused.answered > 0 || refused.lost == 0 {
		t.Errorf("the refused stream: %d answered, %d lost; want none and many", refused.answered, refused.lost)
	}
	t.Logf("%d answered while the state changed %d times", allowed.answered, 5*len(changes))
}

// Subnets that come and go, also before others in the State, lose no packet of a flow that
// leaves the VPC by another subnet's route table.
func TestNewSubnetsLoseNoPacketsOfOthers(t *testing.T) {
	w := internet(t)
	a := w.plug("eni-a", "10.0.0.10")
	w.at("eni-a").Public = []Public{{Private: addrs("10.0.0.10")[0]}}
	w.apply()
	flow := a.stream("203.0.113.10:7000", replyTimeout)
	before := w.state.Subnets
	for range 20 {
		w.state.Subnets = append([]Subnet{{
			ID: "subnet-0", Prefixes: prefixes("10.0.32.0/20"),
			Routes: []Route{{Destination: prefixes("192.168.9.0/24")[0], Target: Target{Blackhole: true}}},
		}}, before...)
		w.apply()
		w.state.Subnets = before
		w.apply()
	}
	flow.end()
	if flow.lost > 0 || flow.answered < 100 {
		t.Errorf("%d answered, %d lost; want many and none", flow.answered, flow.lost)
	}
}

// Branches that come and go, also the only one, lose no packet of their trunk and of the other
// branches.
func TestChangesOfBranchesLoseNoPacketsOfOthers(t *testing.T) {
	w := newWorld(t)
	n, peer := w.trunk("eni-t", "10.0.0.10"), w.plug("eni-p", "10.0.16.11")
	peer.serveUDP("10.0.16.11:7000")
	n.reaches("", "10.0.16.11:7000")
	change := func(streams ...*exchange) {
		t.Helper()
		extra := w.port("eni-2", "", "10.0.0.22")
		extra.Key = PortKey{ENI: "eni-t", VLAN: 2}
		for range 20 {
			w.state.Ports = append(w.state.Ports, extra)
			w.apply()
			w.inGroup("eni-2")
			w.apply()
			w.remove("eni-2")
		}
		for k, s := range streams {
			s.end()
			if s.lost > 0 || s.answered < 100 {
				t.Errorf("stream %d: %d answered, %d lost; want many and none", k, s.answered, s.lost)
			}
		}
	}
	change(n.stream("10.0.16.11:7000", replyTimeout))
	one := n.branch("eni-1", 1, "10.0.0.21")
	one.reaches("", "10.0.16.11:7000")
	change(n.stream("10.0.16.11:7000", replyTimeout), one.stream("10.0.16.11:7000", replyTimeout))
}

func TestCountersSurviveARewriteOfTheTables(t *testing.T) {
	w := newWorld(t)
	a := w.plug("eni-a", "10.0.0.10")
	a.pinGateway("10.0.0.1")
	a.assign("10.0.0.66")
	a.silent("10.0.0.66", "10.0.16.99:7000")
	before := w.drops("eni-a")
	if before.Spoofed == 0 {
		t.Fatal("no packet was counted")
	}
	nft(w, "add table ip foreign")
	w.apply()
	if got := w.drops("eni-a"); got.Spoofed < before.Spoofed {
		t.Errorf("counters after a rewrite: %+v, before: %+v", got, before)
	}
	a.silent("10.0.0.66", "10.0.16.99:7000")
	if got := w.drops("eni-a"); got.Spoofed <= before.Spoofed {
		t.Errorf("counters do not increase: %+v, before: %+v", got, before)
	}
}

// BenchmarkRoundTrip is one datagram and its reply between two ports, with groups and
// anti-spoofing.
func BenchmarkRoundTrip(b *testing.B) {
	w := newWorld(b)
	from, to := w.plug("eni-a", "10.0.0.10"), w.plug("eni-b", "10.0.16.11")
	to.serveUDP("10.0.16.11:7000")
	var c net.Conn
	w.must(from.Run(func() (err error) {
		c, err = net.Dial("udp", netip.MustParseAddrPort("10.0.16.11:7000").String())
		return err
	}))
	defer c.Close()
	buffer := make([]byte, 64)
	for b.Loop() {
		if _, err := c.Write([]byte("?")); err != nil {
			b.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(replyTimeout))
		if _, err := c.Read(buffer); err != nil {
			b.Fatal(err)
		}
	}
}
