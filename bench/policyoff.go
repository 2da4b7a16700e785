package bench

import (
	"os/exec"
	"strings"
)

// Kinds of paths of policyOff.
const (
	unpoliced = "without policies"
	isOff     = "network policy off"
)

// offTurns is how many turns policyOff takes in a round. The ratio is near 1, so that its interval
// must be narrower than those of policyPaths.
const offTurns = 10

// policyOff measures round trips and connections between pods of two nodes on which network policy is
// on while the cluster has no policy, to those of two on which it is off, in turns.
//
// On the links of the former is the qdisc of the programs, without any program. The kernel calls it
// behind a static branch that the first such qdisc of the machine turns on (net_inc_ingress_queue in
// net/core/dev.c), for all namespaces: so both sides have that branch, and the figures do not
// contain it. The aim is 1, and the limit leaves 2 % for the interval: 0.6 µs of a round trip of 29 µs, or
// 0.07 µs for each of the eight hooks that it passes.
func policyOff(r *run, o Options) []Result {
	defer moreProcessors()()
	kinds := []string{unpoliced, isOff}
	var paths [2]*path
	for i, kind := range kinds {
		r.Logf("two nodes: %s", kind)
		paths[i] = newPath(r, kind, 2*i+1)
		if kind == unpoliced {
			paths[i].prepareInterfaces()
		}
		paths[i].mustHaveQdiscs(kind == unpoliced)
	}
	var trips, connections [2][]float64
	for turn := range offTurns * max(3, o.Rounds) {
		for i := range kinds {
			at := (i + turn) % len(kinds)
			trips[at] = append(trips[at], paths[at].roundTrip())
			connections[at] = append(connections[at], paths[at].connection())
		}
	}
	limit := budget{limit: 1.02, ofRatio: true}
	return []Result{
		compared("policy.off_rtt_p50.ratio", "µs", pairs{trips[0], trips[1]}, limit),
		compared("policy.off_crr_cpu.ratio", "µs", pairs{connections[0], connections[1]}, limit),
	}
}

// prepareInterfaces adds the qdisc to the nodes' interfaces, as control/policy does before there is
// a policy. The nodes of test/enforce do not have them in their tables.
func (p *path) prepareInterfaces() {
	for _, n := range p.nodes {
		index, err := n.Host.Index("eth0")
		if err == nil {
			err = n.Host.AddClsact(p.Context(), index)
		}
		if err != nil {
			p.Fatalf("prepare the interface of %s: %v", n, err)
		}
	}
}

// mustHaveQdiscs proves that both links of each node have the qdisc, or that none has it.
func (p *path) mustHaveQdiscs(want bool) {
	for i, pod := range []string{p.client.Link(), p.server.Link()} {
		for _, link := range []string{"eth0", pod} {
			out, err := exec.Command("tc", "-n", p.nodes[i].NS.Name, "qdisc", "show", "dev", link).CombinedOutput()
			if err != nil {
				p.Fatalf("read the qdiscs of %s: %v: %s", link, err, out)
			}
			if has := strings.Contains(string(out), "clsact"); has != want {
				p.Fatalf("%s of %s has the qdisc of programs: %t, want %t: %s", link, p.nodes[i], has, want, out)
			}
		}
	}
}
