package connectivity

import (
	"fmt"
	"net/netip"
)

// Peer is one end of a path.
type Peer struct {
	Pod  string
	Addr netip.Addr
	Node Node
	ENI  ENI // zero if unknown
	Host bool
	ports
}

func (p Peer) String() string {
	s := fmt.Sprintf("%s (%s on %s", p.Pod, p.Addr, p.Node.Name)
	if p.ENI.ID != "" {
		s += ", " + p.ENI.ID
	}
	return s + ")"
}

// Env is the prepared cluster that cases run in.
type Env struct {
	Cluster Cluster
	Options Options
	Nodes   []Node // the nodes with test pods: one or two

	// Client, Server and Host are a pod on each of Nodes; Host pods are on the host's
	// network.
	Client, Server, Host []Peer
	Pairs                Pairs
	Services             Services
	Policed              Policed // empty until the cases with policies run
	Grouped              Grouped // empty until the cases with security groups run

	namespace namespace
	streams   streams
	unmet     unmet
}

// far returns the index of the other node: 1, or 0 if there is only one node.
func (e *Env) far() int { return len(e.Nodes) - 1 }

// pathHints returns commands that show the path between two peers.
func pathHints(from, to Peer) []string {
	hints := []string{fmt.Sprintf("on %s: ip route get %s from %s iif any; ip rule; nft list table inet trunkline (counters)", from.Node.Name, to.Addr, from.Addr)}
	for _, p := range []Peer{from, to} {
		if !p.Host {
			hints = append(hints, fmt.Sprintf("trunkline show addresses --node %s --why | grep %s", p.Node.Name, p.Addr))
		}
	}
	return hints
}
