package policy

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// shop is a cluster with a web pod, a database and a pod of another namespace.
func shop(policies ...Policy) *Cluster {
	return &Cluster{
		Namespaces: map[string]labels.Set{"shop": {"team": "shop"}, "other": {"team": "other"}},
		Pods: []Pod{
			{Namespace: "shop", Name: "web", Labels: labels.Set{"app": "web"}, Addresses: []netip.Addr{addr("10.0.0.1")}, Node: "a"},
			{
				Namespace: "shop", Name: "db", Labels: labels.Set{"app": "db"}, Addresses: []netip.Addr{addr("10.0.0.2")}, Node: "b",
				Ports: []NamedPort{{"sql", TCP, 5432}},
			},
			{Namespace: "other", Name: "job", Labels: labels.Set{"app": "web"}, Addresses: []netip.Addr{addr("10.0.0.3")}, Node: "b"},
		},
		Nodes:    []Node{{Name: "b", Addresses: []netip.Addr{addr("10.0.9.9")}}},
		Policies: policies,
	}
}

func pods(expression string) *PodSet {
	selector, err := labels.Parse(expression)
	if err != nil {
		panic(err)
	}
	return &PodSet{Namespace: "shop", Pods: selector}
}

func toDB(rules ...Rule) Policy {
	return Policy{Ref: Ref{KindNetworkPolicy, "shop", "db"}, Tier: Namespaced, Subject: *pods("app=db"), Isolates: [2]bool{Ingress: true}, Rules: [2][]Rule{Ingress: rules}}
}

func cluster(tier Tier, order int, name string, rules ...Rule) Policy {
	return Policy{Ref: Ref{Kind: "ClusterNetworkPolicy", Name: name}, Tier: tier, Order: order, Rules: [2][]Rule{Ingress: rules}}
}

func TestConnectionsToADatabase(t *testing.T) {
	web := Rule{Peers: []Peer{{Pods: pods("app=web")}}, Ports: []Port{{Protocol: TCP, Name: "sql"}}}
	all := Rule{AnyPeer: true, AnyPort: true}
	deny := Rule{Action: Deny, AnyPeer: true, AnyPort: true}
	pass := Rule{Action: Pass, AnyPeer: true, AnyPort: true}
	block := Rule{Peers: []Peer{{Block: &Block{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/30")}}}}, AnyPort: true}
	tcp := func(from string, port uint16) Flow { return Flow{addr(from), addr("10.0.0.2"), TCP, port} }
	for name, c := range map[string]struct {
		policies []Policy
		flow     Flow
		want     string
	}{
		"without policies":                           {nil, tcp("10.0.0.1", 5432), "allowed: no policy decides about it"},
		"by a rule, with its named port":             {[]Policy{toDB(web)}, tcp("10.0.0.1", 5432), "allowed by NetworkPolicy shop/db, rule 1"},
		"to another port":                            {[]Policy{toDB(web)}, tcp("10.0.0.1", 80), "denied: isolated by NetworkPolicy shop/db, and no rule allows it"},
		"over UDP":                                   {[]Policy{toDB(web)}, Flow{addr("10.0.0.1"), addr("10.0.0.2"), UDP, 5432}, "denied: isolated by NetworkPolicy shop/db, and no rule allows it"},
		"from a pod of another namespace":            {[]Policy{toDB(web)}, tcp("10.0.0.3", 5432), "denied: isolated by NetworkPolicy shop/db, and no rule allows it"},
		"from its node":                              {[]Policy{toDB()}, tcp("10.0.9.9", 5432), "allowed: the node that runs it"},
		"from itself":                                {[]Policy{toDB()}, tcp("10.0.0.2", 5432), "allowed: the pod itself"},
		"ICMP, where only ports are allowed":         {[]Policy{toDB(web)}, Flow{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: 1}, "denied: isolated by NetworkPolicy shop/db, and no rule allows it"},
		"ICMP, where all is allowed":                 {[]Policy{toDB(web, all)}, Flow{Source: addr("10.0.0.1"), Destination: addr("10.0.0.2"), Protocol: 1}, "allowed by NetworkPolicy shop/db, rule 2"},
		"from a block":                               {[]Policy{toDB(block)}, tcp("10.9.9.9", 1), "allowed by NetworkPolicy shop/db, rule 1"},
		"from an exception":                          {[]Policy{toDB(block)}, tcp("10.0.0.3", 1), "denied: isolated by NetworkPolicy shop/db, and no rule allows it"},
		"from an exception that another rule allows": {[]Policy{toDB(block, web)}, tcp("10.0.0.1", 5432), "allowed by NetworkPolicy shop/db, rule 2"},
		"an admin deny beats a namespaced accept":    {[]Policy{toDB(all), cluster(Admin, 5, "x", deny)}, tcp("10.0.0.1", 1), "denied by ClusterNetworkPolicy x, rule 1"},
		"of two admin policies the first decides":    {[]Policy{cluster(Admin, 5, "x", deny), cluster(Admin, 4, "y", all)}, tcp("10.0.0.1", 1), "allowed by ClusterNetworkPolicy y, rule 1"},
		"pass leads past later admin policies":       {[]Policy{cluster(Admin, 1, "x", pass), cluster(Admin, 2, "y", deny)}, tcp("10.0.0.1", 1), "allowed: no policy decides about it"},
		"pass leads to namespaced policies":          {[]Policy{cluster(Admin, 1, "x", pass, all), toDB(web)}, tcp("10.0.0.1", 1), "denied: isolated by NetworkPolicy shop/db, and no rule allows it"},
		"a baseline deny of a pod without policies":  {[]Policy{cluster(Baseline, 1, "x", deny)}, tcp("10.0.0.1", 1), "denied by ClusterNetworkPolicy x, rule 1"},
		"no baseline of an isolated pod":             {[]Policy{cluster(Baseline, 1, "x", deny), toDB(web)}, tcp("10.0.0.1", 5432), "allowed by NetworkPolicy shop/db, rule 1"},
	} {
		if got := shop(c.policies...).Evaluate(c.flow).Ingress.String(); got != c.want {
			t.Errorf("%s: %s\ngot  %s\nwant %s", name, c.flow, got, c.want)
		}
		for _, limits := range []Limits{unlimited(), {}} {
			compiled(shop(c.policies...), limits).agrees(t, name, []string{"10.0.0.1", "10.0.0.3", "10.0.9.9", "10.9.9.9"}, []uint16{1, 80, 5432})
		}
	}
}
