//go:build netns

package cyclonus

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"testing"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/test/conformance"
	"github.com/trunkline/trunkline/test/conformance/cases"
	"github.com/trunkline/trunkline/test/enforce"
	"github.com/trunkline/trunkline/test/suite"
)

// casesSampled is how many cases a sample has.
const casesSampled = 20

// cluster is two nodes with pods, under the policies of one step of a case.
type cluster struct {
	t         *testing.T
	nodes     [2]*enforce.Node
	addresses map[policy.PodRef]netip.Addr
	pods      map[policy.PodRef]*enforce.Pod
	policies  map[string]bool
	spaces    map[string]bool
	sctp      associations
	barrier   int64
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	first := enforce.New(t, 1, nil, nil)
	c := &cluster{
		t: t, nodes: [2]*enforce.Node{first, enforce.New(t, 2, first.Server, nil)}, addresses: map[policy.PodRef]netip.Addr{},
		pods: map[policy.PodRef]*enforce.Pod{}, policies: map[string]bool{}, spaces: map[string]bool{}, sctp: associations{seen: map[association]int{}},
	}
	enforce.Connect(c.nodes[0], c.nodes[1])
	return c
}

// address gives each pod an address of one of the nodes, in turn.
func (c *cluster) address(ref policy.PodRef) netip.Addr {
	if _, has := c.addresses[ref]; !has {
		n := len(c.addresses)
		c.addresses[ref] = c.nodes[n%2].PodAddress(n)
	}
	return c.addresses[ref]
}

// node is the one that has an address.
func (c *cluster) node(a netip.Addr) *enforce.Node {
	if netip.PrefixFrom(c.nodes[0].Spec.Address, 24).Contains(a) {
		return c.nodes[0]
	}
	return c.nodes[1]
}

// become makes the cluster be as a step says, and waits until that is in force.
func (c *cluster) become(want *conformance.Cluster) {
	c.t.Helper()
	for name := range c.spaces {
		if _, wanted := want.Namespaces[name]; !wanted {
			c.nodes[0].Server.Delete("/api/v1/namespaces", name)
			delete(c.spaces, name)
		}
	}
	for name, set := range want.Namespaces {
		c.nodes[0].Namespace(name, set)
		c.spaces[name] = true
	}
	keep := map[string]bool{}
	for _, p := range want.Policies {
		c.nodes[0].Policy(p)
		keep[p.Namespace+"/"+p.Name] = true
	}
	for key := range c.policies {
		if !keep[key] {
			c.nodes[0].Server.Delete("/apis/networking.k8s.io/v1/networkpolicies", key)
		}
	}
	c.policies = keep
	c.sync() // the namespaces of pods must be known before they are added
	c.becomePods(want.Pods)
	c.sync()
}

func (c *cluster) sync() {
	c.t.Helper()
	c.barrier++
	c.nodes[0].Raise(c.barrier)
	for _, n := range c.nodes {
		n.UntilBarrier(c.barrier)
	}
}

func (c *cluster) becomePods(want []policy.Pod) {
	c.t.Helper()
	gone := maps.Clone(c.pods)
	local := map[*enforce.Node][]kube.Pod{}
	for _, p := range want {
		at := c.node(p.Addresses[0])
		if c.pods[p.Ref()] == nil {
			c.pods[p.Ref()] = at.Add(enforce.Pod{PodRef: p.Ref(), Labels: p.Labels, Ports: p.Ports, Address: p.Addresses[0]})
			c.serve(c.pods[p.Ref()])
		}
		delete(gone, p.Ref())
		local[at] = append(local[at], kube.Pod{PodRef: kube.PodRef{Namespace: p.Namespace, Name: p.Name}, UID: "uid-" + p.Name, Labels: p.Labels, Ports: p.Ports})
		p.Node = at.String()
		c.nodes[0].Server.Put("/api/v1/pods", enforce.APIPod(p))
	}
	for ref, pod := range gone {
		c.node(pod.Address).Remove(nil, pod)
		c.nodes[0].Server.Delete("/api/v1/pods", ref.Namespace+"/"+ref.Name)
		delete(c.pods, ref)
	}
	for _, n := range c.nodes {
		n.SetPods(local[n])
	}
}

// serve answers at the ports 80 and 81 of a pod, and notes SCTP packets to any.
func (c *cluster) serve(p *enforce.Pod) {
	c.t.Helper()
	if out, err := exec.Command("ip", "-n", p.NS.Name, "link", "set", "lo", "up").CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	p.NS.Do(c.t, func() {
		for _, port := range []int{80, 81} {
			if err := serve(c.t, port); err != nil {
				c.t.Fatal(err)
			}
		}
		if err := c.sctp.receive(c.t, p.Address); err != nil {
			c.t.Fatal(err)
		}
	})
}

// try tries the connections of a step and returns those with another outcome than expected.
func (c *cluster) try(step cases.Step) (tried int, wrong []string) {
	type tries struct{ sockets, sctp []cases.Probe }
	by := map[policy.PodRef]tries{}
	for _, p := range step.Probes {
		of := by[p.From]
		if p.Flow.Protocol == policy.SCTP {
			of.sctp = append(of.sctp, p)
		} else {
			of.sockets = append(of.sockets, p)
		}
		by[p.From] = of
		tried++
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for ref, probes := range by {
		all.Go(func() {
			var found []string
			err := c.pods[ref].NS.Run(func() error {
				found = append(tryAll(probes.sockets, reach), tryAll(probes.sctp, c.sctp.reach)...)
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				found = append(found, err.Error())
			}
			wrong = append(wrong, found...)
		})
	}
	all.Wait()
	return tried, wrong
}

// deniedOf counts the connections of a step that must be denied.
func deniedOf(step cases.Step) (n int) {
	for _, p := range step.Probes {
		if !expected(p) {
			n++
		}
	}
	return n
}

func TestPacketsOfCyclonusCasesHaveItsVerdicts(t *testing.T) {
	c := newCluster(t)
	list, err := cases.All(c.address)
	if err != nil {
		t.Fatal(err)
	}
	seed := enforce.Seed(t)
	r := rand.New(rand.NewPCG(seed, 4))
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	list = list[:enforce.Sample(casesSampled, len(list))]
	slices.SortFunc(list, func(a, b cases.Case) int { return a.Number - b.Number })
	steps, tried, denied, failed := c.tryAll(list, func(step cases.Step) cases.Step { return step })
	body := fmt.Sprintf("%d steps, %d connections by TCP, UDP and, crafted, SCTP, of pods of two nodes, %d of them to be denied; %d steps are wrong", steps, tried, denied, failed)
	t.Logf("%d cases, %s", len(list), body)
	if suite.IsFull() && !t.Failed() {
		if err := report().Write("pod addresses", suite.Counted{Number: len(list), Of: "cases", Seed: seed}, body); err != nil {
			t.Fatal(err)
		}
	}
}

// tryAll tries the steps of cases, each as another function gives it, and counts steps, connections, those to
// be denied, and steps that are wrong.
func (c *cluster) tryAll(list []cases.Case, as func(cases.Step) cases.Step) (steps, tried, denied, failed int) {
	c.t.Helper()
	for _, one := range list {
		for n, step := range one.Steps {
			step = as(step)
			c.become(step.Cluster)
			count, wrong := c.try(step)
			steps, tried, denied = steps+1, tried+count, denied+deniedOf(step)
			if len(wrong) > 0 {
				failed++
				c.t.Errorf("case %d (%s), step %d: %d of %d connections are wrong:\n%s", one.Number, one.Description, n+1, len(wrong), count, lines(wrong))
			}
		}
	}
	return steps, tried, denied, failed
}

// The deliberate error: the policies of a step are not in force.
func TestConnectionsWithoutTheirPoliciesAreNoticed(t *testing.T) {
	c := newCluster(t)
	list, err := cases.All(c.address)
	if err != nil {
		t.Fatal(err)
	}
	step := list[0].Steps[0]
	open := *step.Cluster
	open.Policies = nil
	c.become(&open)
	tried, wrong := c.try(step)
	t.Logf("%s: %d of %d connections are wrong without policies", list[0].Description, len(wrong), tried)
	if len(wrong) == 0 {
		t.Error("no connection is wrong: the test notices nothing")
	}
}

func lines(all []string) (text string) {
	for _, one := range all[:min(len(all), 10)] {
		text += fmt.Sprintln(" ", one)
	}
	return text
}
