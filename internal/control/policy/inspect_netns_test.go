//go:build netns

package policy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/policy"
)

// flows returns what the flow log has; more are those that come after the first ones.
func (r *rig) flows(url string) (next func() introspection.Flow) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	r.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	return func() (f introspection.Flow) {
		r.t.Helper()
		for more := true; more; more = len(lines.Bytes()) == 0 { // empty lines keep the connection alive
			if !lines.Scan() {
				r.t.Fatalf("the flow log ends: %v", lines.Err())
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			r.t.Fatal(err)
		}
		return f
	}
}

func TestWhatTheKernelHoldsAndDeniesHasNames(t *testing.T) {
	r := newRig(t)
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies known", func() bool { return r.Objects.Known() && r.Objects.Any() })
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	r.echo("b", 81)
	server := httptest.NewServer(NewViews(r.Controller).Handler())
	t.Cleanup(server.Close)
	next := r.flows(server.URL + introspection.FlowsPath + "?follow=true&sample=2")

	r.mustNotReach("a", "b", 81)
	denied := next()
	if denied.Allowed || denied.Source.Pod != "default/a" || denied.Destination.Pod != "default/b" || denied.Destination.Port != 81 || denied.Pod != "default/b" ||
		denied.Direction != "ingress" || denied.Protocol != "TCP" || !strings.Contains(denied.Why, "NetworkPolicy default/of-b") || time.Since(denied.Time).Abs() > time.Minute {
		t.Errorf("%+v", denied)
	}
	// One of two accepted connections is logged, by chance.
	accepted := func() introspection.Flow {
		for range 64 {
			r.mustReach("a", "b", 80)
		}
		f := next()
		for range 64 {
			if f.Allowed {
				break
			}
			f = next() // repeated SYNs of the denied connection
		}
		return f
	}()
	if !accepted.Allowed || accepted.Destination.Port != 80 || accepted.Policy != "NetworkPolicy default/of-b" || accepted.Rule != 1 {
		t.Errorf("%+v", accepted)
	}
	if kept := r.flows(server.URL + introspection.FlowsPath)(); kept.Allowed || kept.Destination.Port != 81 {
		t.Errorf("kept: %+v", kept)
	}

	got, err := NewViews(r.Controller).Inspect()
	if err != nil || !got.Enforced || len(got.Endpoints) != 2 || len(got.Policies) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	b := got.Endpoints[1]
	if p := got.Policies[0]; p.Name != "NetworkPolicy default/of-b" || fmt.Sprint(p.Pods) != "[default/b]" || b.Pod != "default/b" || !b.Attached || fmt.Sprint(b.Policies) != "[NetworkPolicy default/of-b]" {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(b.Rules, "isolated by NetworkPolicy default/of-b") || got.Endpoints[0].Rules != "open: no policy decides\n" || got.Dropped["policy"] == 0 {
		t.Errorf("%+v", got)
	}
	counted := map[bool]uint64{}
	for _, c := range b.Counts {
		counted[c.Allowed] += c.Connections
	}
	if counted[true] < 64 || counted[false] == 0 {
		t.Errorf("counted %v: %+v", counted, b.Counts)
	}
}

func TestDeniesAreRecordedEachTimePoliciesAreEnforced(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	r.echo("b", 80)
	server := httptest.NewServer(NewViews(r.Controller).Handler())
	t.Cleanup(server.Close)
	next := r.flows(server.URL + introspection.FlowsPath + "?follow=true")
	for range 3 {
		r.server.Put(networkPolicies, allow("b", "", 0))
		r.waitUntil("policies enforced", r.Enforcing)
		r.mustNotReach("a", "b", 80)
		if f := next(); f.Allowed || f.Pod != "default/b" {
			t.Errorf("%+v", f)
		}
		r.server.Delete(networkPolicies, "default/of-b")
		r.waitUntil("policies off", func() bool { return !r.Enforcing() })
	}
}

// The last policy is deleted and another one created while a pod is wired.
func TestAPodThatIsWiredBetweenTwoPoliciesHasItsOwn(t *testing.T) {
	r := newRig(t)
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies known", func() bool { return r.Objects.Known() && r.Objects.Any() })
	r.add("a")
	real := r.Objects
	r.mu.Lock()
	r.Objects = none{real}
	r.mu.Unlock()
	r.add("b")
	r.mu.Lock()
	r.Objects = real
	r.mu.Unlock()
	r.Loop.Mark()
	r.waitUntil("policies enforced", r.Enforcing)
	r.echo("b", 80)
	r.echo("b", 81)
	r.mustReach("a", "b", 80)
	r.mustNotReach("a", "b", 81)
}

// none are objects without a policy for the moment.
type none struct{ Objects }

func (none) Any() bool { return false }

func TestTheKernelAnswersAboutConnections(t *testing.T) {
	r := newRig(t)
	flow := policy.Flow{Protocol: policy.TCP, Port: 80}
	if _, err := NewViews(r.Controller).Verdicts(flow); err == nil {
		t.Error("an answer without policies")
	}
	r.server.Put(networkPolicies, allow("b", "a", 80))
	r.waitUntil("policies known", func() bool { return r.Objects.Known() && r.Objects.Any() })
	r.add("a")
	r.add("b")
	flow.Source, flow.Destination = r.address("a"), r.address("b")
	for protocol, ports := range map[policy.Protocol]map[uint16]bool{
		policy.TCP: {80: true, 81: false}, policy.UDP: {80: false}, policy.SCTP: {80: false}, 1: {0: false}, 47: {0: false},
	} {
		for port, allowed := range ports {
			flow.Protocol, flow.Port = protocol, port
			got, err := NewViews(r.Controller).Verdicts(flow)
			if err != nil || len(got) != 2 || !got[0].Allowed || got[0].Pod != "default/a" || got[1].Allowed != allowed || got[1].Pod != "default/b" {
				t.Errorf("%s: %+v, %v; want it allowed: %v", flow, got, err, allowed)
			}
			flow.Source, flow.Destination = flow.Destination, flow.Source
			if got, err = NewViews(r.Controller).Verdicts(flow); err != nil || len(got) != 2 || !got[0].Allowed || !got[1].Allowed {
				t.Errorf("%s: %+v, %v", flow, got, err)
			}
			flow.Source, flow.Destination = flow.Destination, flow.Source
		}
	}
}

// A flow that the first policy allows goes on as if there were none.
func TestNoPacketIsLostWhileEnforcementBeginsAndEnds(t *testing.T) {
	r := newRig(t)
	r.waitUntil("policies known", r.Objects.Known)
	r.add("a")
	r.add("b")
	to := netip.AddrPortFrom(r.address("b"), 53)
	var server, client *net.UDPConn
	r.ns["b"].Do(t, func() { server = must(net.ListenUDP("udp4", &net.UDPAddr{Port: 53}))(t) })
	r.ns["a"].Do(t, func() { client = must(net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to)))(t) })
	raw := must(server.SyscallConn())(t)
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) }) // the reader may be late
	for arrived := false; !arrived; {                                                                                  // conntrack has the flow, and both links are up
		must(client.Write([]byte("first")))(t)
		_ = server.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := server.Read(make([]byte, 64))
		arrived = err == nil
	}
	_ = server.SetReadDeadline(time.Time{})
	received := make(chan int, 1)
	go func() {
		buffer, count := make([]byte, 64), 0
		for {
			n, err := server.Read(buffer)
			if err != nil || n == 1 {
				received <- count
				return
			}
			count++
		}
	}()
	stop, sent := make(chan struct{}), make(chan int, 1)
	go func() {
		every, count := time.NewTicker(100*time.Microsecond), 0
		defer every.Stop()
		for {
			select {
			case <-stop:
				sent <- count
				return
			case <-every.C:
				if _, err := client.Write([]byte("numbered")); err == nil {
					count++
				}
			}
		}
	}()
	policy := allow("b", "a", 53)
	policy.Spec.Ingress[0].Ports = nil
	for range 10 {
		r.server.Put(networkPolicies, policy)
		r.waitUntil("policies enforced", r.Enforcing)
		r.server.Delete(networkPolicies, "default/of-b")
		r.waitUntil("policies off", func() bool { return !r.Enforcing() })
	}
	close(stop)
	packets := <-sent
	if _, err := client.Write([]byte("x")); err != nil { // the last one
		t.Fatal(err)
	}
	if got := <-received; got != packets || packets == 0 {
		t.Errorf("%d of %d packets arrived", got, packets)
	}
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestAnOddQuestionIsRefused(t *testing.T) {
	server := httptest.NewServer(NewViews(newRig(t).Controller).Handler())
	t.Cleanup(server.Close)
	for _, path := range []string{
		introspection.FlowsPath + "?sample=1", introspection.FlowsPath + "?sample=x",
		introspection.VerdictPath, introspection.VerdictPath + "?source=10.0.0.1&destination=fd00::1&port=1&protocol=6",
		introspection.VerdictPath + "?source=10.0.0.1&destination=10.0.0.2&port=65536&protocol=6",
		introspection.VerdictPath + "?source=10.0.0.1&destination=10.0.0.2&port=1&protocol=256",
	} {
		resp, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}
