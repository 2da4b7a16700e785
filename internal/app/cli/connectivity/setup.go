package connectivity

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
)

// errNoNode: the cluster has no node to run pods on.
var errNoNode = errors.New("no node is ready and schedulable")

// perNode is the minimum number of test pods on a node: client, server, host pod and
// three streams.
const perNode = 6

// prepare creates the pods and services, and determines which needs are met.
func prepare(ctx context.Context, c Cluster, o Options) (*Env, error) {
	e := &Env{Cluster: c, Options: o, namespace: namespace{c, o.Namespace, o.CaseTimeout}, unmet: unmet{}}
	ready, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	if e.Nodes, err = chooseNodes(ready, e.unmet); err != nil {
		return nil, err
	}
	if e.Client, e.Server, e.Host, err = createPeers(ctx, e.namespace, e.Nodes); err != nil {
		return nil, err
	}
	if anyNeeds(Selected(o), SameENI, OtherENI, FarENI) {
		search := newPairSearch(e.namespace, e.Nodes, e.Client, e.Server)
		if e.Pairs, err = search.run(ctx, e.unmet); err != nil {
			return nil, err
		}
		e.Client, e.Server = search.located()
	}
	if e.Services, err = createServices(ctx, e.namespace, e.Server, slices.Concat(e.Client, e.Server, e.Pairs.peers())); err != nil {
		return nil, err
	}
	e.streams = newStreams(e.namespace, e.Server)
	if err := e.streams.start(ctx); err != nil {
		return nil, err
	}
	probeNeeds(ctx, e.namespace, o, e.Host[0], e.unmet)
	if err := probePolicies(ctx, c, e.Nodes, e.unmet); err != nil {
		return nil, err
	}
	if o.ClientGroup == "" || o.ServerGroup == "" {
		e.unmet.add(PodGroups, "no security groups for pods were given (--client-group, --server-group)")
	}
	settle(ctx, e.namespace, o, e.Client, e.Services.probes(e.Nodes[0]))
	return e, nil
}

// chooseNodes returns the nodes that get test pods: up to two of the ready ones. It
// records in u why there are not two.
func chooseNodes(ready []Node, u unmet) ([]Node, error) {
	if len(ready) == 0 {
		return nil, errNoNode
	}
	usable := slices.DeleteFunc(slices.Clone(ready), func(n Node) bool { return n.FreePods < perNode })
	switch {
	case len(usable) == 0:
		return nil, fmt.Errorf("none of %d ready nodes can run %d more pods", len(ready), perNode)
	case len(ready) == 1:
		u.add(TwoNodes, "the cluster has one ready node")
	case len(usable) == 1:
		u.add(TwoNodes, "only one ready node of %d can run %d more pods", len(ready), perNode)
	case usable[0].Unrouted:
		u.add(TwoNodes, "routes between nodes come with the routing backends")
	default:
		return usable[:2], nil
	}
	return usable[:1], nil
}

// probePolicies records in u why the cases with policies cannot run on nodes: policies are not
// enforced, or the first one has no space for their pods.
func probePolicies(ctx context.Context, c Cluster, nodes []Node, u unmet) error {
	for _, n := range nodes {
		if n.Unenforced != "" {
			u.add(Policies, "node %s enforces no network policies: %s", n.Name, n.Unenforced)
			return nil
		}
	}
	now, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range now {
		if most := len(new(Policed).peers()); n.Name == nodes[0].Name && n.FreePods < most {
			u.add(Policies, "node %s can run %d more pods, and the cases with policies need %d", n.Name, n.FreePods, most)
		}
	}
	return nil
}

// anyNeeds reports whether one of cases has one of needs.
func anyNeeds(cases []Case, needs ...Need) bool {
	return slices.ContainsFunc(cases, func(c Case) bool {
		return slices.ContainsFunc(c.Needs, func(n Need) bool { return slices.Contains(needs, n) })
	})
}

// createPeers creates a client, a server and a host pod on each node.
func createPeers(ctx context.Context, in namespace, nodes []Node) (client, server, host []Peer, err error) {
	var s Setup
	for i, n := range nodes {
		id := strconv.Itoa(i + 1)
		server := PodSpec{Name: "server-" + id, Node: n.Name}
		if i == 0 {
			server.HostPort = hostPort
		}
		s.Pods = append(s.Pods,
			PodSpec{Name: "client-" + id, Node: n.Name}, server,
			PodSpec{Name: "host-" + id, Node: n.Name, Host: true})
	}
	addrs, err := in.create(ctx, s)
	if err != nil {
		return nil, nil, nil, err
	}
	for i, n := range nodes {
		id := strconv.Itoa(i + 1)
		peer := func(role string) Peer {
			return Peer{Pod: role + id, Addr: addrs[role+id], Node: n, ports: podPorts()}
		}
		client = append(client, peer("client-"))
		server = append(server, peer("server-"))
		h := peer("host-")
		h.Host, h.ports = true, hostPorts()
		host = append(host, h)
	}
	return client, server, host, nil
}

// settle waits until every probe (arguments of dial) has succeeded once in every client,
// up to SettleTime. Services that do not answer fail their cases, which report the reason.
func settle(ctx context.Context, in namespace, o Options, clients []Peer, probes [][]string) {
	ctx, cancel := context.WithTimeout(ctx, o.SettleTime)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(max(1, o.Concurrency))
	for _, from := range clients {
		for _, args := range probes {
			g.Go(func() error {
				_ = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(context.Context) (bool, error) {
					r, err := in.dial(ctx, from, args...)
					return err == nil && r.OK, nil
				})
				return nil
			})
		}
	}
	_ = g.Wait() // nothing above returns an error
}
