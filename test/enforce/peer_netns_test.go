//go:build netns

package enforce

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// portPeer is the port of the server that all versions of its policy allow the pods of an app to reach,
// which other nodes have.
const portPeer = 1004

// remote is a pod of another node that sends numbered packets to the server all the time, also while the
// API server does not show it.
type remote struct {
	node    *Node // the server's
	pod     *Pod
	stream  *stream
	shown   []shown
	barrier int64
	hide    bool // a deliberate error: changes are noted, and the API server does not show them
}

// shown is what the API server showed of the pod, and when packets may have been judged by it: from
// before the request until an agent had written the next one.
type shown struct {
	exists   bool
	from, to time.Duration // to: 0: still
}

// newRemote makes the node, the pod, and its packets. The API server does not show it yet.
func newRemote(t *testing.T, n *Node, server *Pod) *remote {
	t.Helper()
	other := New(t, 2, n.Server, func(s *Spec) { s.Off = true })
	Connect(n, other)
	r := &remote{node: n, pod: other.Add(Pod{PodRef: ref("remote"), Labels: app("remote"), Address: other.PodAddress(0)}), shown: []shown{{from: now()}}}
	udp := ported()[0]
	receiver := udp.open(t, server.NS, portPeer)
	r.stream = startStream(t, []flow{{"remote to the server", udp.open(t, r.pod.NS, 0), netip.AddrPortFrom(server.Address, portPeer)}}, receiver)
	return r
}

// flip has the API server show the pod, or not any longer. What it showed before may judge packets until
// inForce.
func (r *remote) flip() {
	exists := !r.shown[len(r.shown)-1].exists
	r.shown = append(r.shown, shown{exists: exists, from: now()})
	if !r.hide {
		r.show(exists)
	}
	r.barrier++
	raise(r.node.Server, r.barrier)
}

func (r *remote) show(exists bool) {
	if exists {
		r.node.Server.Put(pods, APIPod(policy.Pod{Namespace: "default", Name: "remote", Node: "another", Labels: r.pod.Labels, Addresses: []netip.Addr{r.pod.Address}}))
	} else {
		r.node.Server.Delete(pods, "default/remote")
	}
}

// inForce waits until the agent has written what the API server shows.
func (r *remote) inForce(agent *process) {
	agent.until(fmt.Sprint(taken, r.barrier))
	for i := range r.shown[:len(r.shown)-1] {
		if s := &r.shown[i]; s.to == 0 {
			s.to = now()
		}
	}
}

// verdicts are of the packets with one possible verdict.
type verdicts struct{ allowed, denied, open, lost int }

func (v verdicts) String() string {
	return fmt.Sprintf("of a pod of another node %d must pass, of which %d were lost, and %d must not, of which %d passed", v.allowed, v.lost, v.denied, v.open)
}

// result compares each packet with what may have been in force between its stamp and its receipt. One
// that was not received was judged before the second one after it that was; without such it may not
// have been read yet, and is lost to nothing.
func (r *remote) result(closed func(time.Duration) bool) (v verdicts) {
	const never = time.Duration(1<<63 - 1)
	records := r.stream.all()
	until := never // receipt of the second one that was received after the packet
	next := never
	for n := len(records) - 1; n >= 0; n-- {
		at := records[n]
		end := until
		if at.received != 0 {
			end = at.received
			until, next = next, at.received
		}
		allow, deny := r.possible(at.sent, end)
		switch {
		case allow && deny:
			if at.received == 0 && r.deniedAt(at.sent) {
				v.denied++
			}
		case deny:
			v.denied++
			if at.received != 0 {
				v.open++
			}
		case at.received != 0:
			v.allowed++
		case end != never && !closed(at.sent):
			v.allowed++
			v.lost++
		}
	}
	return v
}

// deniedAt reports whether a packet could only be denied when it was sent. If it was not received, it
// is not known until when it was judged, but the verdict is right in any case.
func (r *remote) deniedAt(sent time.Duration) bool {
	allow, _ := r.possible(sent, sent)
	return !allow
}

// possible returns which verdicts there may have been in a time.
func (r *remote) possible(from, until time.Duration) (allow, deny bool) {
	for _, s := range r.shown {
		if s.from <= until && (s.to == 0 || s.to >= from) {
			allow, deny = allow || s.exists, deny || !s.exists
		}
	}
	return allow, deny
}

// The API server does not show agents the changes that the test compares with: one amid an end, and one
// after it.
func TestAnAgentWithOlderPeersThanTheClustersIsNoticed(t *testing.T) {
	l := newLife(t)
	l.remote.hide = true
	l.end(l.remote.flip, false)
	l.remote.inForce(l.agent)
	l.remote.stream.untilSent(100)
	l.remote.show(true) // what was lost shows once a later packet is received
	l.remote.stream.reach(t, "packets of the other node", 20, 0)
	l.remote.flip()
	l.remote.inForce(l.agent)
	l.remote.stream.untilSent(100)
	v := l.remote.result(l.closedAt)
	t.Log(v)
	if v.lost == 0 || v.open == 0 {
		t.Errorf("the API server did not show what the test compares with, and that is not noticed: %s", v)
	}
}
