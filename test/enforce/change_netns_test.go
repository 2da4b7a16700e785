//go:build netns

package enforce

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/edge/bpf"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Ports of the server: version A of its policy allows client one to reach port 1001, version B
// allows client two to reach port 1002, and both allow both clients to reach port 1003. So no
// version allows one to reach 1002, or two to reach 1001, which a mixture of both would.
const (
	portA, portB, portAlways = 1001, 1002, 1003
)

// version is a policy in force, and when it may have been: from when the controller took it
// until what replaced it was written.
type version struct {
	number   int64
	from, to time.Duration // 0: still
}

// allows reports whether a version allows a flow of change.
func (v version) allows(client, port int) bool {
	return port == portAlways || client == 1 && port == portA && v.number%2 == 0 || client == 2 && port == portB && v.number%2 == 1
}

func versionOf(number int64) *networkingv1.NetworkPolicy {
	p := isolating("server", from("one", portAlways), from("two", portAlways), from("one", portA), from("remote", portPeer))
	if number%2 == 1 {
		p.Spec.Ingress[2] = from("two", portB)
	}
	p.Generation = number
	return p
}

// change is a server with a policy that changes under numbered packets of two clients.
type change struct {
	*Node
	server   *Pod
	client   *Pod // one
	stream   *stream
	who      [][2]int // client and port of each flow
	always   []int    // flows that every version allows
	versions []version
	between  func(*bpf.Datapath, endpoint.ID) // a deliberate error, before a version is written
}

func newChange(t *testing.T) *change {
	t.Helper()
	c := &change{Node: New(t, 1, nil, nil), between: func(*bpf.Datapath, endpoint.ID) {}}
	c.Policy(versionOf(0))
	c.Sync()
	c.server = c.Add(Pod{PodRef: ref("server"), Labels: app("server"), Address: c.PodAddress(0)})
	var flows []flow
	var receivers []conn
	ports := []int{portA, portB, portAlways}
	for _, k := range ported() {
		for _, port := range ports {
			receivers = append(receivers, k.open(t, c.server.NS, port))
		}
	}
	for i, name := range []string{"one", "two"} {
		pod := c.Add(Pod{PodRef: ref(name), Labels: app(name), Address: c.PodAddress(i + 1)})
		if c.client == nil {
			c.client = pod
		}
		for _, k := range ported() {
			from := k.open(t, pod.NS, 0)
			for _, port := range ports {
				if port == portAlways {
					c.always = append(c.always, len(flows))
				}
				flows = append(flows, flow{fmt.Sprintf("%s to %d by %s", name, port, k), from, netip.AddrPortFrom(k.of(c.server), uint16(port))})
				c.who = append(c.who, [2]int{i + 1, port})
			}
		}
	}
	c.Sync()
	c.versions = []version{{from: now()}}
	c.stream = startStream(t, flows, receivers...)
	c.stream.begin(t, c.always...)
	return c
}

// flip changes the policy, a number of times.
func (c *change) flip(times int) {
	c.T.Helper()
	took := make(chan version, 2*times+1)
	c.Observe(func(changes kube.PolicyChanges) {
		for ref, object := range changes.Policies {
			if ref.Name == "of-server" && object != nil {
				took <- version{number: object.Generation, from: now()}
				c.between(c.Datapath(), c.server.ID())
			}
		}
	})
	written := make(chan struct{})
	go func() {
		defer close(written)
		for v := range took {
			_ = c.Problem() // returns once v is written
			c.versions[len(c.versions)-1].to = now()
			c.versions = append(c.versions, v)
		}
	}()
	tick := time.NewTicker(flipEvery)
	defer tick.Stop()
	for number := range int64(times) {
		<-tick.C
		c.Policy(versionOf(number + 1))
	}
	c.Sync()
	c.Observe(nil)
	close(took)
	<-written
	var allowed []int
	for n, who := range c.who {
		if c.versions[len(c.versions)-1].allows(who[0], who[1]) {
			allowed = append(allowed, n)
		}
	}
	c.stream.reach(c.T, "packets after the last change", 20, allowed...)
	c.stream.stop()
}

// outcome is what became of the packets.
type outcome struct {
	sent, received, certain int // certain: all versions that could judge it agree
	open, lost              int // wrongly allowed, wrongly denied
	first                   string
}

func (o outcome) String() string {
	return fmt.Sprintf("%d packets, %d received, %d with one possible verdict: %d wrongly allowed, %d wrongly denied%s", o.sent, o.received, o.certain, o.open, o.lost, o.first)
}

// judge compares each packet with the versions that may have been in force between its stamp and
// its receipt. A packet that was not received was judged before one that was sent two rounds later
// was received. After the last one of its own flow it may be at a socket that was not read any more.
func (c *change) judge() (o outcome) {
	records := c.stream.all()
	flows := len(c.who)
	bounds := make([]time.Duration, len(records)+2*flows)
	for n := len(records) - 1; n >= 0; n-- {
		bounds[n] = bounds[n+1]
		if r := records[n].received; r != 0 && (bounds[n] == 0 || r < bounds[n]) {
			bounds[n] = r
		}
	}
	last := make([]int, flows) // packet that was received
	for n, r := range records {
		if r.received != 0 {
			last[n%flows] = n
		}
	}
	first := 0 // version that may judge the packet
	for n, r := range records {
		until := r.received
		if until == 0 {
			until = bounds[n+2*flows]
		}
		if until == 0 || n > last[n%flows] {
			continue // at the end
		}
		for first < len(c.versions)-1 && c.versions[first].to < r.sent {
			first++
		}
		allow, deny := c.possible(c.versions[first:], c.who[n%flows], until)
		o.sent++
		if allow != deny {
			o.certain++
		}
		switch {
		case r.received != 0:
			o.received++
			if !allow {
				o.open++
			}
		case !deny:
			o.lost++
		}
		if o.first == "" && o.open+o.lost > 0 {
			o.first = fmt.Sprintf("; first: number %d, %s, sent %v, judged until %v, by %v", n, c.stream.flows[n%flows].name, r.sent, until, c.versions[first:min(first+3, len(c.versions))])
		}
	}
	return o
}

// possible returns which verdicts the versions have that began before a time.
func (c *change) possible(versions []version, who [2]int, until time.Duration) (allow, deny bool) {
	for _, v := range versions {
		if v.from > until {
			break
		}
		if v.allows(who[0], who[1]) {
			allow = true
		} else {
			deny = true
		}
	}
	return allow, deny
}

func TestEveryPacketIsJudgedByAVersionInForce(t *testing.T) {
	c := newChange(t)
	flips := Sample(flipsSampled, flipsFull)
	c.flip(flips)
	o := c.judge()
	if o.open > 0 || o.lost > 0 {
		t.Errorf("wrong: %s", o)
	}
	if o.certain < o.sent/2 || len(c.versions) < Sample(flipsSampled, flipsFull)/4 {
		t.Errorf("the test proves little: %d versions, %s", len(c.versions), o)
	}
	writeReport(t, "change", flips, "changes", 0, fmt.Sprintf("%d versions were in force; %s", len(c.versions), o))
}

// The deliberate errors: what is in force is replaced by nothing, or by everything, meanwhile.
func TestAPolicyThatIsAbsentWhileItChangesIsNoticed(t *testing.T) {
	for what, set := range map[string]uint32{"open": bpf.SetOpen, "closed": bpf.SetNone} {
		t.Run(what, func(t *testing.T) {
			c := newChange(t)
			c.between = func(d *bpf.Datapath, id endpoint.ID) {
				before := d.State.InForce(id)
				d.State.SetInForce(id, set)
				c.stream.untilSent(2 * len(c.stream.flows))
				d.State.SetInForce(id, before)
			}
			c.flip(20)
			o := c.judge()
			t.Logf("%d versions were in force; %s", len(c.versions), o)
			if what == "open" && o.open == 0 || what == "closed" && o.lost == 0 {
				t.Errorf("nothing is noticed: %s", o)
			}
		})
	}
}
