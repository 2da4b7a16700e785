package connectivity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// errNoNode: the cluster has no node to run pods on.
var errNoNode = errors.New("no node is ready and schedulable")

// perNode is the minimum number of test pods on a node: client, server, host pod and
// three streams.
const perNode = 6

// prepare creates the pods and services, and determines which needs are met.
func prepare(ctx context.Context, c Cluster, o Options) (*Env, error) {
	e := &Env{
		Cluster: c, Options: o, Services: map[string]Service{}, NodePort: map[string]Service{},
		// A new name in each run: resolvers cache the answers of an earlier run for 30 s.
		headless: "servers-" + strconv.FormatInt(time.Now().UnixMilli(), 36),
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return nil, errNoNode
	}
	usable := slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return n.FreePods < perNode })
	e.Nodes = usable[:min(2, len(usable))]
	switch {
	case len(usable) == 0:
		return nil, fmt.Errorf("none of %d ready nodes can run %d more pods", len(nodes), perNode)
	case e.Nodes[0].Unrouted && len(e.Nodes) > 1:
		e.Nodes = e.Nodes[:1]
		e.lack(TwoNodes, "routes between nodes come with the routing backends")
	case len(nodes) == 1:
		e.lack(TwoNodes, "the cluster has one ready node")
	case len(usable) == 1:
		e.lack(TwoNodes, "only one ready node of %d can run %d more pods", len(nodes), perNode)
	}
	if err := e.createPeers(ctx); err != nil {
		return nil, err
	}
	wants := func(n Need) bool {
		return slices.ContainsFunc(Selected(o), func(c Case) bool { return slices.Contains(c.Needs, n) })
	}
	if wants(SameENI) || wants(OtherENI) || wants(FarENI) {
		if err := e.findPairs(ctx); err != nil {
			return nil, err
		}
	}
	if err := e.createServices(ctx); err != nil {
		return nil, err
	}
	e.probeNeeds(ctx)
	e.settle(ctx)
	return e, nil
}

// createPeers creates a client, a server and a host pod on each node.
func (e *Env) createPeers(ctx context.Context) error {
	var s Setup
	for i, n := range e.Nodes {
		id := strconv.Itoa(i + 1)
		server := PodSpec{Name: "server-" + id, Node: n.Name}
		if i == 0 {
			server.HostPort = hostPort
		}
		s.Pods = append(s.Pods,
			PodSpec{Name: "client-" + id, Node: n.Name}, server,
			PodSpec{Name: "host-" + id, Node: n.Name, Host: true})
	}
	addrs, err := e.Cluster.Create(ctx, e.Options.Namespace, s)
	if err != nil {
		return err
	}
	for i, n := range e.Nodes {
		id := strconv.Itoa(i + 1)
		peer := func(role string) Peer {
			return Peer{Pod: role + id, Addr: addrs[role+id], Node: n, ports: podPorts()}
		}
		e.Client = append(e.Client, peer("client-"))
		e.Server = append(e.Server, peer("server-"))
		host := peer("host-")
		host.Host, host.ports = true, hostPorts()
		e.Host = append(e.Host, host)
	}
	return nil
}

// Filler pods per round and node, and the maximum number of rounds.
const (
	fillRound = 5
	fillMax   = 4
)

// findPairs determines the pods' ENIs, and adds pods until there is a pair of each kind
// or the nodes are full.
func (e *Env) findPairs(ctx context.Context) error {
	pods := make([][]Peer, len(e.Nodes)) // by node
	for i := range e.Nodes {
		pods[i] = []Peer{e.Client[i], e.Server[i]}
	}
	for round := 0; ; round++ {
		if why := e.locate(ctx, pods); why != "" {
			for _, n := range []Need{SameENI, OtherENI, FarENI} {
				e.lack(n, "%s", why)
			}
			return nil
		}
		e.choose(pods)
		if e.SameENI != nil && e.OtherENI != nil && (e.FarENI != nil || len(e.Nodes) == 1) || round == fillMax {
			break
		}
		more, err := e.fill(ctx, pods, round)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	tried := fmt.Sprintf("after %d pods on %s", len(pods[0]), e.Nodes[0].Name)
	if e.SameENI == nil {
		e.lack(SameENI, "no two pods share an ENI %s", tried)
	}
	if e.OtherENI == nil {
		e.lack(OtherENI, "all pods are on one ENI %s", tried)
	}
	if e.FarENI == nil {
		e.lack(FarENI, "no pod on a secondary ENI of each node %s", tried)
	}
	return nil
}

// locate sets the peers' ENIs. It returns the reason if it cannot.
func (e *Env) locate(ctx context.Context, pods [][]Peer) string {
	for i, n := range e.Nodes {
		enis, err := e.Cluster.Interfaces(ctx, n.Name)
		if errors.Is(err, ErrNoENIs) {
			return err.Error()
		}
		if err != nil {
			return fmt.Sprintf("the ENIs of pods' addresses are unknown: %v", err)
		}
		for j, p := range pods[i] {
			at := slices.IndexFunc(enis, func(eni ENI) bool { return slices.Contains(eni.Pods, p.Addr) })
			if at < 0 {
				return fmt.Sprintf("the agent on %s does not list address %s of pod %s", n.Name, p.Addr, p.Pod)
			}
			pods[i][j].ENI = enis[at]
		}
		e.Client[i], e.Server[i] = pods[i][0], pods[i][1]
	}
	return ""
}

// choose selects the pairs from the existing pods.
func (e *Env) choose(pods [][]Peer) {
	secondary := func(p Peer) bool { return p.ENI.Device > 0 }
	for i, a := range pods[0] {
		for _, b := range pods[0][i+1:] {
			if a.ENI.ID == b.ENI.ID {
				// Prefer a pair on a secondary ENI, because its traffic needs policy routing.
				if e.SameENI == nil || secondary(a) && !secondary(e.SameENI[0]) {
					e.SameENI = &[2]Peer{a, b}
				}
			} else if e.OtherENI == nil {
				e.OtherENI = &[2]Peer{a, b}
			}
		}
	}
	if len(pods) < 2 {
		return
	}
	a, b := slices.IndexFunc(pods[0], secondary), slices.IndexFunc(pods[1], secondary)
	if a >= 0 && b >= 0 {
		e.FarENI = &[2]Peer{pods[0][a], pods[1][b]}
	}
}

// fill adds up to fillRound pods to each node. It reports whether it added any.
func (e *Env) fill(ctx context.Context, pods [][]Peer, round int) (bool, error) {
	var s Setup
	where := map[string]int{}
	for i, n := range e.Nodes {
		// Eight stay free for the streams and for pods of other users.
		left := n.FreePods - 8 - round*fillRound
		for k := range min(fillRound, left) {
			name := fmt.Sprintf("filler-%d-%d", i+1, round*fillRound+k+1)
			where[name] = i
			s.Pods = append(s.Pods, PodSpec{Name: name, Node: n.Name})
		}
	}
	if len(s.Pods) == 0 {
		return false, nil
	}
	addrs, err := e.Cluster.Create(ctx, e.Options.Namespace, s)
	if err != nil {
		return false, fmt.Errorf("add pods to reach a second ENI: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(where)) {
		i := where[name]
		pods[i] = append(pods[i], Peer{Pod: name, Addr: addrs[name], Node: e.Nodes[i], ports: podPorts()})
	}
	return true, nil
}

// createServices creates a ClusterIP Service per pod of a case, the headless one, the
// node ports, and the pods with the long-lived streams.
func (e *Env) createServices(ctx context.Context) error {
	names := map[string]bool{}
	for _, p := range append(slices.Clone(e.Client), e.Server...) {
		names[p.Pod] = true
	}
	for _, pair := range []*[2]Peer{e.SameENI, e.OtherENI, e.FarENI} {
		if pair != nil {
			names[pair[0].Pod], names[pair[1].Pod] = true, true
		}
	}
	var servers []string
	for _, p := range e.Server {
		servers = append(servers, p.Pod)
	}
	first := servers[:1]
	s := Setup{Services: []ServiceSpec{
		{Name: e.headless, Pods: servers, Headless: true},
		{Name: nodePortCluster, Pods: first, NodePort: true},
		{Name: nodePortLocal, Pods: first, NodePort: true, Local: true},
	}}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		s.Services = append(s.Services, ServiceSpec{Name: ServiceName(name), Pods: []string{name}})
	}
	s.Pods = e.streams()
	if _, err := e.Cluster.Create(ctx, e.Options.Namespace, s); err != nil {
		return err
	}
	read := func(name string) (Service, error) { return e.Cluster.Service(ctx, e.Options.Namespace, name) }
	var err error
	for name := range names {
		if e.Services[name], err = read(ServiceName(name)); err != nil {
			return err
		}
	}
	if e.NodePort["cluster"], err = read(nodePortCluster); err != nil {
		return err
	}
	e.NodePort["local"], err = read(nodePortLocal)
	return err
}

// probeNeeds determines the needs that depend on the cluster alone.
func (e *Env) probeNeeds(ctx context.Context) {
	if e.Options.Outside == "" {
		e.lack(OutsideHost, "no host outside the VPC was given (--outside)")
	}
	if largePayload(e.Options.MTU)+datagramHeaders <= vpc.InternetMTU {
		e.lack(JumboFrames, "with an MTU of %d no packet is too large for the internet", e.Options.MTU)
	}
	if r, err := e.dial(ctx, e.Host[0], "imds"); err != nil || !r.OK {
		e.lack(Metadata, "node %s itself has no instance metadata", e.Nodes[0].Name)
	}
	if _, err := e.Cluster.Health(ctx); err != nil {
		e.lack(Trunkline, "the status of Trunkline cannot be read: %v", err)
	}
	config, err := e.pluginConfig(ctx)
	switch {
	case err != nil:
		e.lack(Portmap, "the node's CNI configuration cannot be read: %v", err)
	case !strings.Contains(config, `"portmap"`):
		e.lack(Portmap, "portmap is not chained in the CNI configuration of %s", e.Nodes[0].Name)
	}
	e.PluginConfig = config
}

// pluginConfig reads the CNI configuration that the first node's runtime uses: the first
// file by name.
func (e *Env) pluginConfig(ctx context.Context) (string, error) {
	host := e.Host[0].Pod
	out, err := e.Cluster.Exec(ctx, e.Options.Namespace, host, []string{"/bin/ls", PluginConfigMount})
	if err != nil {
		return "", err
	}
	for _, name := range slices.Sorted(slices.Values(strings.Fields(out.Stdout))) {
		if strings.HasSuffix(name, ".conflist") || strings.HasSuffix(name, ".conf") {
			out, err = e.Cluster.Exec(ctx, e.Options.Namespace, host, []string{"/bin/cat", PluginConfigMount + "/" + name})
			return out.Stdout, err
		}
	}
	return "", errors.New("no .conflist or .conf file in " + PluginConfigMount)
}

// settle waits until every Service has answered once, up to SettleTime. Services that do
// not answer fail their cases, which report the reason.
func (e *Env) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.Options.SettleTime)
	defer cancel()
	var targets []string
	for _, svc := range e.Services {
		targets = append(targets, hostport(svc.Address, podPorts().HTTP))
	}
	for _, svc := range e.NodePort {
		targets = append(targets, hostport(e.Nodes[0].Internal[0], svc.NodePort))
	}
	var g errgroup.Group
	g.SetLimit(max(1, e.Options.Concurrency))
	for _, from := range e.Client {
		for _, t := range targets {
			g.Go(func() error {
				e.retry(ctx, from, "http", t, "--timeout=1s")
				return nil
			})
		}
		g.Go(func() error {
			e.retry(ctx, from, "dns", e.headless+"."+e.Options.Namespace+".svc", "--timeout=1s")
			return nil
		})
	}
	_ = g.Wait() // nothing above returns an error
}

// retry dials until it succeeds or ctx ends.
func (e *Env) retry(ctx context.Context, from Peer, args ...string) {
	_ = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(context.Context) (bool, error) {
		r, err := e.dial(ctx, from, args...)
		return err == nil && r.OK, nil
	})
}

// streams returns the pods that hold a stream open during the whole run.
func (e *Env) streams() []PodSpec {
	var out []PodSpec
	add := func(name string, to netip.Addr, port int, proto string) {
		out = append(out, PodSpec{Name: "stream-" + name, Node: e.Nodes[0].Name, Stream: []string{
			"stream", hostport(to, port), "--proto=" + proto, "--duration=1h", "--interval=20ms", "--report=1s",
		}})
	}
	p := podPorts()
	add("tcp-same-node", e.Server[0].Addr, p.TCP, "tcp")
	if e.far() == 1 {
		add("tcp-other-node", e.Server[1].Addr, p.TCP, "tcp")
		add("udp-other-node", e.Server[1].Addr, p.UDP, "udp")
	}
	return out
}
