package policy

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func TestObjectsHaveReadableTexts(t *testing.T) {
	web, team := pods("app=web").Pods, pods("team=shop").Pods
	ports := func(n int) (list []Port) {
		for i := range n {
			list = append(list, Port{Protocol: TCP, First: uint16(i + 1), Last: uint16(i + 1)})
		}
		return list
	}
	for want, got := range map[string]fmt.Stringer{
		"ingress": Ingress, "egress": Egress,
		"TCP": TCP, "UDP": UDP, "SCTP": SCTP, "ICMP": Protocol(1), "ICMPv6": Protocol(58), "protocol 47": Protocol(47),
		"admin": Admin, "namespaced": Namespaced, "baseline": Baseline,
		"accept": Accept, "deny": Deny, "pass": Pass,
		"NetworkPolicy shop/db": Ref{"NetworkPolicy", "shop", "db"}, "ClusterNetworkPolicy x": Ref{Kind: "ClusterNetworkPolicy", Name: "x"},
		"shop/db": PodRef{"shop", "db"},

		"pods of all namespaces":                      PodSet{},
		"pods app=web of all namespaces":              PodSet{Pods: web},
		"pods of namespace shop":                      PodSet{Namespace: "shop", Pods: labels.Everything()},
		"pods app=web of namespace shop":              PodSet{Namespace: "shop", Pods: web},
		"pods of namespaces team=shop":                PodSet{Namespaces: team},
		"pods app=web of namespaces team=shop":        PodSet{Namespaces: team, Pods: web},
		"no pods":                                     PodSet{Pods: labels.Nothing()},
		"10.0.0.0/8":                                  *blockOf("10.0.0.0/8"),
		"10.0.0.0/8 without 10.1.0.0/16":              *blockOf("10.0.0.0/8", "10.1.0.0/16"),
		"10.0.0.0/8 without 10.1.0.0/16, 10.2.0.0/16": *blockOf("10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16"),
		"domain name example.com":                     Peer{Name: "example.com"},
		"10.0.0.0/9":                                  Peer{Block: blockOf("10.0.0.0/9")},
		"pods app=db of namespace shop":               Peer{Pods: pods("app=db")},

		"TCP http":    Port{Protocol: TCP, Name: "http"},
		"TCP 80":      Port{Protocol: TCP, First: 80, Last: 80},
		"UDP 80-90":   Port{Protocol: UDP, First: 80, Last: 90},
		"TCP 0":       Port{Protocol: TCP},
		"TCP 0-65534": Port{Protocol: TCP, Last: 65534},
		"TCP 1-65535": Port{Protocol: TCP, First: 1, Last: 65535},

		"no set": SetNone, "open": SetOpen, "pending": SetPending, "set 16": SetFirst,
		"scope 3, ports 4": Set{Scope: 3, Ports: 4},
		"scope 3, ports 4, isolates ingress, isolates egress, port ranges, prefixes": Set{3, 4, [2]bool{true, true}, true, true},
		"scope 3, ports 4, isolates egress":                                          Set{Scope: 3, Ports: 4, Isolated: [2]bool{Egress: true}},

		"10.0.0.1 → 10.0.0.2:80 TCP":              Flow{addr("10.0.0.1"), addr("10.0.0.2"), TCP, 80},
		"fd00::1 → [fd00::2]:53 UDP":              Flow{addr("fd00::1"), addr("fd00::2"), UDP, 53},
		"10.0.0.1 → 10.0.0.2 ICMP":                Flow{addr("10.0.0.1"), addr("10.0.0.2"), 1, 0},
		"10.0.0.1 → 10.0.0.2:132 SCTP":            Flow{addr("10.0.0.1"), addr("10.0.0.2"), SCTP, 132},
		"allowed: no pod of the cluster":          Decision{Allowed: true, Basis: NoPod},
		"denied: its namespace is not known":      Decision{Basis: NoNamespace},
		"denied by NetworkPolicy shop/db, rule 3": Decision{Basis: ByRule, Policy: toDB().Ref, Rule: 2},
		"denied: isolated by NetworkPolicy shop/db, NetworkPolicy shop/x, and no rule allows it": Decision{Basis: Isolated, Isolating: []Ref{toDB().Ref, {"NetworkPolicy", "shop", "x"}}},

		"endpoint 7 of pod shop/db: reason": Pending{7, PodRef{"shop", "db"}, "reason"},
	} {
		if got.String() != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if got := (PodSet{Namespaces: labels.Everything()}).String(); got != "pods of all namespaces" {
		t.Error(got)
	}
	if got := (PodSet{Namespaces: labels.Nothing()}).String(); got != "no pods" {
		t.Error(got)
	}
	if got := (Port{Protocol: SCTP, Last: allPorts}).String(); got != "SCTP" {
		t.Error(got)
	}
	for want, r := range map[string]Rule{
		"accept from any peer: any port":                                                       {AnyPeer: true, AnyPort: true},
		"accept from nothing: nothing":                                                         {},
		"deny from pods app=web of namespace shop; 10.0.0.0/8: TCP 1; TCP 2":                   {Action: Deny, Peers: append(fromPods("app=web").Peers, fromBlock("10.0.0.0/8").Peers...), Ports: ports(2)},
		"accept from any peer: TCP 1; TCP 2; TCP 3; TCP 4; TCP 5; TCP 6; TCP 7; TCP 8":         {AnyPeer: true, Ports: ports(8)},
		"accept from any peer: TCP 1; TCP 2; TCP 3; TCP 4; TCP 5; TCP 6; TCP 7; TCP 8; 2 more": {AnyPeer: true, Ports: ports(10)},
	} {
		if got := r.Describe(Ingress); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if got, want := r.Describe(Egress), strings.Replace(want, " from ", " to ", 1); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestTheTablesAreListedInOrder(t *testing.T) {
	tables := NewTables()
	change := Change{
		Before: []Operation{
			Put[SetID, Set]{20, Set{Scope: 1, Ports: 2}},
			Put[SetID, Set]{16, Set{}},
			Put[ClassKey, Class]{ClassKey{1, addr("10.0.0.1")}, 5},
			Put[PrefixKey, Class]{PrefixKey{1, blockOf("10.0.0.0/8").Prefix}, 6},
			Put[PortKey, PortClass]{PortKey{2, TCP, 80}, 1},
			Put[PortRange, PortClass]{PortRange{2, UDP, 64, 10}, 2},
			putRow{RowKey{20, Egress, 5, 1}, 3},
		},
		Switch: []Operation{putEndpoint{2, 20}, putEndpoint{1, 16}},
		After:  []Operation{Delete[SetID]{17}},
		Epoch:  true,
	}
	tables.Apply(change.All()...)
	want := `endpoint     1: set 16
endpoint     2: set 20
set 16: scope 0, ports 0
set 20: scope 1, ports 2
scope 1, 10.0.0.1: class 5
scope 1, 10.0.0.0/8: class 6
ports 2, TCP    80: port class 1
ports 2, UDP    64/10: port class 2
set 20, egress, class 5, page 1: ` + strings.Repeat("0", 62) + "11\n"
	if got := tables.String(); got != want || tables.Len() != 9 {
		t.Errorf("%d entries:\n%s\nwant\n%s", tables.Len(), got, want)
	}
	if got, want := change.String(), "before: put set 20: scope 1, ports 2\n"; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "switch: put 1: set 16\nafter: delete set 17\nepoch\n") {
		t.Errorf("%s", got)
	}
	if change.Len() != 10 || change.Empty() {
		t.Errorf("%d operations", change.Len())
	}
	for _, o := range []Operation{
		Delete[SetID]{20},
		Delete[SetID]{16},
		Delete[ClassKey]{ClassKey{1, addr("10.0.0.1")}},
		Delete[PrefixKey]{PrefixKey{1, blockOf("10.0.0.0/8").Prefix}},
		Delete[PortKey]{PortKey{2, TCP, 80}},
		Delete[PortRange]{PortRange{2, UDP, 64, 10}},
		Delete[RowKey]{RowKey{20, Egress, 5, 1}},
		deleteEndpoint{1},
		deleteEndpoint{2},
	} {
		before := tables.Len()
		if tables.Apply(o, o); tables.Len() != before-1 {
			t.Errorf("%s: %d entries of %d", o, tables.Len(), before)
		}
	}
}

func TestAChangeIsEmptyWithoutOperationsAndEpoch(t *testing.T) {
	o := []Operation{Delete[SetID]{17}}
	for name, c := range map[string]struct {
		change Change
		empty  bool
		text   string
	}{
		"nothing":           {Change{}, true, ""},
		"the epoch":         {Change{Epoch: true}, false, "epoch\n"},
		"before":            {Change{Before: o}, false, "before: delete set 17\n"},
		"switch":            {Change{Switch: o}, false, "switch: delete set 17\n"},
		"after":             {Change{After: o}, false, "after: delete set 17\n"},
		"each of the parts": {Change{Before: o, Switch: o, After: o, Epoch: true}, false, "before: delete set 17\nswitch: delete set 17\nafter: delete set 17\nepoch\n"},
	} {
		if c.change.Empty() != c.empty || c.change.String() != c.text || len(c.change.All()) != c.change.Len() {
			t.Errorf("%s: empty %v\n%s", name, c.change.Empty(), c.change)
		}
	}
}

func TestASetIsDescribedWithWhatIsolatesAndWithItsScope(t *testing.T) {
	m := node(toDB(fromPods("app=web")), cluster(Baseline, 1, "base", Rule{AnyPeer: true, AnyPort: true}), cluster(Admin, 1, "first", Rule{Action: Pass, AnyPeer: true, AnyPort: true}))
	want := `set 16 of 1 endpoints, 1 rows of classes
  ingress: what no rule decides is denied
    isolated by NetworkPolicy shop/db
    admin, ClusterNetworkPolicy first, rule 1: pass from any peer: any port
    namespaced, NetworkPolicy shop/db, rule 1: accept from pods app=web of namespace shop: any port
  egress: no policy decides
`
	if got := m.engine.Describe(16); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	m.deletePolicy(toDB().Ref)
	m.apply()
	if got, want := m.engine.Describe(17), "  ingress: what no rule decides is allowed\n    admin, ClusterNetworkPolicy first"; !strings.Contains(got, want) || !strings.Contains(got, "\n    baseline, ClusterNetworkPolicy base, rule 1: accept") {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	for id, want := range map[SetID]string{
		SetOpen: "open: no policy decides\n", SetPending: "pending: nothing passes until the pod and its namespace are known\n",
		SetNone: "no set is not known\n", 99: "set 99 is not known\n",
	} {
		if got := m.engine.Describe(id); got != want {
			t.Errorf("%s: %s", id, got)
		}
	}
	limited := newModel(Limits{})
	fill(limited)
	limited.setPolicy(toDB(fromPods("app=web")))
	limited.apply()
	if got := limited.engine.Describe(limited.tables.Endpoints[1]); !strings.Contains(got, "\n  classes of its own (scope 1): its 1 conditions on peers divide them too far\n") {
		t.Errorf("%s", got)
	}
}
