package connectivity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Pairs are pods with addresses on the same ENI or on different ones; nil if the cluster
// has no such pair.
type Pairs struct {
	// SameENI and OtherENI are two pods on the first node with addresses on the same ENI
	// and on different ones. FarENI is a pair on secondary ENIs of two nodes.
	SameENI, OtherENI, FarENI *[2]Peer
}

// peers returns the pods of all pairs. A pod may be in several.
func (p Pairs) peers() (out []Peer) {
	for _, pair := range []*[2]Peer{p.SameENI, p.OtherENI, p.FarENI} {
		if pair != nil {
			out = append(out, pair[0], pair[1])
		}
	}
	return out
}

// choosePairs selects the pairs from the pods of each node. Their ENIs are set.
func choosePairs(pods [][]Peer) (out Pairs) {
	secondary := func(p Peer) bool { return p.ENI.Device > 0 }
	for i, a := range pods[0] {
		for _, b := range pods[0][i+1:] {
			if a.ENI.ID == b.ENI.ID {
				// Prefer a pair on a secondary ENI, because its traffic needs policy routing.
				if out.SameENI == nil || secondary(a) && !secondary(out.SameENI[0]) {
					out.SameENI = &[2]Peer{a, b}
				}
			} else if out.OtherENI == nil {
				out.OtherENI = &[2]Peer{a, b}
			}
		}
	}
	if len(pods) < 2 {
		return out
	}
	a, b := slices.IndexFunc(pods[0], secondary), slices.IndexFunc(pods[1], secondary)
	if a >= 0 && b >= 0 {
		out.FarENI = &[2]Peer{pods[0][a], pods[1][b]}
	}
	return out
}

// Filler pods per round and node, and the maximum number of rounds.
const (
	fillRound = 5
	fillMax   = 4
)

// pairSearch finds pairs among the pods of a run: it determines the pods' ENIs, and adds
// pods until there is a pair of each kind or the nodes are full.
type pairSearch struct {
	namespace namespace
	nodes     []Node
	pods      [][]Peer // by node: client, server, then the added pods
}

func newPairSearch(in namespace, nodes []Node, client, server []Peer) *pairSearch {
	s := &pairSearch{namespace: in, nodes: nodes}
	for i := range nodes {
		s.pods = append(s.pods, []Peer{client[i], server[i]})
	}
	return s
}

// run returns the pairs, and records in u why one is missing. An error is one of adding
// pods.
func (s *pairSearch) run(ctx context.Context, u unmet) (Pairs, error) {
	var found Pairs
	for round := 0; ; round++ {
		if err := s.locate(ctx); err != nil {
			for _, n := range []Need{SameENI, OtherENI, FarENI} {
				u.add(n, "%v", err)
			}
			return Pairs{}, nil
		}
		found = choosePairs(s.pods)
		if found.SameENI != nil && found.OtherENI != nil && (found.FarENI != nil || len(s.nodes) == 1) || round == fillMax {
			break
		}
		more, err := s.fill(ctx, round)
		if err != nil {
			return Pairs{}, err
		}
		if !more {
			break
		}
	}
	tried := fmt.Sprintf("after %d pods on %s", len(s.pods[0]), s.nodes[0].Name)
	if found.SameENI == nil {
		u.add(SameENI, "no two pods share an ENI %s", tried)
	}
	if found.OtherENI == nil {
		u.add(OtherENI, "all pods are on one ENI %s", tried)
	}
	if found.FarENI == nil {
		u.add(FarENI, "no pod on a secondary ENI of each node %s", tried)
	}
	return found, nil
}

// located returns the clients and servers with their ENIs, as far as they are known.
func (s *pairSearch) located() (client, server []Peer) {
	for _, pods := range s.pods {
		client, server = append(client, pods[0]), append(server, pods[1])
	}
	return client, server
}

// locate sets the pods' ENIs.
func (s *pairSearch) locate(ctx context.Context) error {
	for i, n := range s.nodes {
		enis, err := s.namespace.cluster.Interfaces(ctx, n.Name)
		if errors.Is(err, ErrNoENIs) {
			return err
		}
		if err != nil {
			return fmt.Errorf("the ENIs of pods' addresses are unknown: %w", err)
		}
		for j, p := range s.pods[i] {
			at := slices.IndexFunc(enis, func(eni ENI) bool { return slices.Contains(eni.Pods, p.Addr) })
			if at < 0 {
				return fmt.Errorf("the agent on %s does not list address %s of pod %s", n.Name, p.Addr, p.Pod)
			}
			s.pods[i][j].ENI = enis[at]
		}
	}
	return nil
}

// fill adds up to fillRound pods to each node. It reports whether it added any.
func (s *pairSearch) fill(ctx context.Context, round int) (bool, error) {
	var more Setup
	where := map[string]int{}
	for i, n := range s.nodes {
		// Eight stay free for the streams and for pods of other users.
		left := n.FreePods - 8 - round*fillRound
		for k := range min(fillRound, left) {
			name := fmt.Sprintf("filler-%d-%d", i+1, round*fillRound+k+1)
			where[name] = i
			more.Pods = append(more.Pods, PodSpec{Name: name, Node: n.Name})
		}
	}
	if len(more.Pods) == 0 {
		return false, nil
	}
	addrs, err := s.namespace.create(ctx, more)
	if err != nil {
		return false, fmt.Errorf("add pods to reach a second ENI: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(where)) {
		i := where[name]
		s.pods[i] = append(s.pods[i], Peer{Pod: name, Addr: addrs[name], Node: s.nodes[i], ports: podPorts()})
	}
	return true, nil
}
