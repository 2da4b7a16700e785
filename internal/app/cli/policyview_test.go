package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/api/introspection"
)

// nodeAgent is the agent of a node that answers at its debug socket with content by path.
func nodeAgent(t *testing.T, content map[string]string) Agent {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cni.sock")
	l, err := net.Listen("unix", introspection.DebugSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		text, found := content[req.URL.String()]
		if !found {
			http.Error(w, "no "+req.URL.String(), http.StatusConflict)
			return
		}
		fmt.Fprint(w, text)
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return Agent{Socket: socket}
}

func encoded(t *testing.T, values ...any) string {
	t.Helper()
	var b strings.Builder
	for _, v := range values {
		if err := WriteJSONLine(&b, v); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

var noon = time.Date(2030, 1, 2, 12, 0, 0, 0, time.Local)

func denied(seconds int, from, to string, sourcePort uint16) introspection.Flow {
	return introspection.Flow{
		Time: noon.Add(time.Duration(seconds) * time.Second), Protocol: "TCP", Pod: to, Direction: "ingress", Why: "no rule allows it",
		Source:      introspection.FlowEnd{Address: netip.MustParseAddr("10.0.0.7"), Port: sourcePort, Pod: from},
		Destination: introspection.FlowEnd{Address: netip.MustParseAddr("10.0.0.8"), Port: 80, Pod: to},
	}
}

func TestDeniedPacketsAreGroupedByTheirEnds(t *testing.T) {
	a := nodeAgent(t, map[string]string{introspection.FlowsPath: encoded(t,
		denied(1, "shop/web", "shop/db", 40000), denied(2, "shop/web", "shop/db", 40001), denied(3, "", "shop/db", 40002), denied(4, "shop/other", "shop/third", 1))})
	var flows []introspection.Flow
	err := ReadFlows(t.Context(), []Agent{a}, FlowQuery{Pod: "shop/db"}, func(f introspection.Flow) error {
		flows = append(flows, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	WriteDenials(&b, "shop/db", Denials(flows), noon.Add(10*time.Second))
	want := `✗ 10.0.0.7 → shop/db:80 TCP: 1 packets, the last 7s ago
    ingress of shop/db: no rule allows it
✗ shop/web → shop/db:80 TCP: 2 packets, the last 8s ago
    ingress of shop/db: no rule allows it
`
	if b.String() != want {
		t.Errorf("%s", b.String())
	}
	b.Reset()
	WriteDenials(&b, "shop/db", nil, noon)
	if got := b.String(); got != "no agent has a denied packet of or to shop/db among its last ones\n" {
		t.Error(got)
	}
}

func TestARecordIsALine(t *testing.T) {
	lost, ping := denied(0, "shop/web", "shop/db", 40000), denied(1, "shop/web", "", 0)
	lost.Lost = 3
	ping.Allowed, ping.Protocol, ping.Type, ping.Destination.Port, ping.Pod, ping.Why = true, "ICMP", 8, 0, "", "no policy decides about it"
	var b strings.Builder
	for _, f := range []introspection.Flow{lost, ping} {
		if err := WriteFlow(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	want := `12:00:00.000 ✗ shop/web:40000 → shop/db:80 TCP  ingress of shop/db: no rule allows it  (3 records before it were lost)
12:00:01.000 ✓ shop/web → 10.0.0.8 ICMP type 8 code 0  no policy decides about it
`
	if b.String() != want {
		t.Errorf("%s", b.String())
	}
}

func TestAFlowLogThatCannotBeReadIsAnError(t *testing.T) {
	broken := nodeAgent(t, map[string]string{introspection.FlowsPath: "no json\n"})
	absent := Agent{Socket: filepath.Join(t.TempDir(), "none")}
	for _, a := range []Agent{broken, absent} {
		if err := ReadFlows(t.Context(), []Agent{a}, FlowQuery{}, nil); err == nil {
			t.Error("no error")
		}
	}
	stop := errors.New("stop")
	good := nodeAgent(t, map[string]string{introspection.FlowsPath: encoded(t, denied(0, "a/b", "c/d", 1))})
	if err := ReadFlows(t.Context(), []Agent{good}, FlowQuery{}, func(introspection.Flow) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v, want the caller's error", err)
	}
}

func TestPoliciesOfNodesAreShownOnce(t *testing.T) {
	enforced := introspection.Policies{
		Enforced: true,
		Policies: []introspection.Policy{
			{Name: "NetworkPolicy shop/db", Pods: []string{"shop/db-0", "shop/db-1", "shop/db-2", "shop/db-3"}},
			{Name: "NetworkPolicy shop/odd", Problems: []string{"rule 1: ports from 90 to 80 are none"}},
		},
		Endpoints: []introspection.PolicyEndpoint{
			{
				ID: 3, Pod: "shop/db-0", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.8")}, Link: "eni3", Attached: true, Rules: "set 17\n  egress: no policy decides\n",
				Counts: []introspection.PolicyCount{{Direction: "ingress", Allowed: true, Connections: 5, Peers: "other peers", Why: "NetworkPolicy shop/db, rule 1"}},
			},
			{ID: 4, Pod: "shop/new", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.9")}, Link: "eni4", Rules: "pending\n", Pending: "the namespace is not known"},
		},
		Dropped: map[string]uint64{"policy": 7, "fragment": 1},
	}
	nodes, err := ReadPolicies(t.Context(), []Agent{
		nodeAgent(t, map[string]string{introspection.PoliciesPath: encoded(t, enforced)}),
		nodeAgent(t, map[string]string{introspection.PoliciesPath: encoded(t, introspection.Policies{Problem: "the kernel lacks xt_bpf"})}),
		nodeAgent(t, nil),
	})
	if err == nil || len(nodes) != 2 {
		t.Fatalf("%d nodes, %v; want two and the error of the third", len(nodes), err)
	}
	nodes[0].Node, nodes[1].Node = "one", "two"
	var b strings.Builder
	WritePolicies(&b, nodes)
	want := `✗ two: policies are NOT enforced: the kernel lacks xt_bpf
POLICY                  PODS                                          NODES
NetworkPolicy shop/db   shop/db-0, shop/db-1, shop/db-2 and 1 more    1
NetworkPolicy shop/odd  none                                          0
! NetworkPolicy shop/odd: rule 1: ports from 90 to 80 are none
`
	if got := b.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("%s", got)
	}
	b.Reset()
	WriteDump(&b, nodes[:1], "")
	want = `one: 2 policies, of which pods of this node are selected by 1
  shop/db-0  10.0.0.8 on eni3, endpoint 3, programs attached
    set 17
      egress: no policy decides
    5 connections allowed, ingress, other peers: NetworkPolicy shop/db, rule 1
  shop/new  10.0.0.9 on eni4, endpoint 4, ✗ programs NOT attached
    ! nothing passes yet: the namespace is not known
    pending
  1 packets dropped: fragment
  7 packets dropped: policy
`
	if b.String() != want {
		t.Errorf("%s", b.String())
	}
	b.Reset()
	WriteDump(&b, nodes[:1], "shop/db-0")
	if got := b.String(); strings.Contains(got, "shop/new") || strings.Contains(got, "dropped") || !strings.Contains(got, "shop/db-0") {
		t.Errorf("%s", got)
	}
}

func TestANodesVerdictIsAskedByAddress(t *testing.T) {
	want := []introspection.Verdict{{Pod: "shop/db", Direction: "ingress", Why: "no rule allows it"}}
	a := nodeAgent(t, map[string]string{introspection.VerdictPath + "?destination=10.0.0.8&port=5432&protocol=6&source=10.0.0.7": encoded(t, want)})
	got, err := Verdicts(t.Context(), a, netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8"), 5432, 6)
	if raw, _ := json.Marshal(got); err != nil || len(got) != 1 || got[0] != want[0] {
		t.Errorf("%s, %v", raw, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Verdicts(ctx, a, netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8"), 5432, 6); err == nil {
		t.Error("an answer after the end")
	}
}
