package policy

import (
	"fmt"
	"strings"
)

// String is the set in words.
func (s PodSet) String() string {
	pods, where := "pods", "of all namespaces"
	switch key := selectorKey(s.Pods); key {
	case "", "*":
	case "-":
		return "no pods"
	default:
		pods += " " + key
	}
	switch key := selectorKey(s.Namespaces); {
	case s.Namespace != "":
		where = "of namespace " + s.Namespace
	case key == "-":
		return "no pods"
	case key != "" && key != "*":
		where = "of namespaces " + key
	}
	return pods + " " + where
}

// String is the block in words.
func (b Block) String() string {
	text := b.Prefix.String()
	for i, e := range b.Except {
		if i == 0 {
			text += " without "
		} else {
			text += ", "
		}
		text += e.String()
	}
	return text
}

// String is the peer in words.
func (p Peer) String() string {
	switch {
	case p.Pods != nil:
		return p.Pods.String()
	case p.Block != nil:
		return p.Block.String()
	default:
		return "domain name " + p.Name
	}
}

// String is the port in words.
func (p Port) String() string {
	switch {
	case p.Name != "":
		return fmt.Sprintf("%s %s", p.Protocol, p.Name)
	case p.First == 0 && p.Last == allPorts:
		return p.Protocol.String()
	case p.First == p.Last:
		return fmt.Sprintf("%s %d", p.Protocol, p.First)
	default:
		return fmt.Sprintf("%s %d-%d", p.Protocol, p.First, p.Last)
	}
}

// Describe is the rule in words, as one of a direction.
func (r Rule) Describe(d Direction) string {
	peers, ports := "any peer", "any port"
	if !r.AnyPeer {
		peers = words(r.Peers)
	}
	if !r.AnyPort {
		ports = words(r.Ports)
	}
	side := "from"
	if d == Egress {
		side = "to"
	}
	return fmt.Sprintf("%s %s %s: %s", r.Action, side, peers, ports)
}

func words[T fmt.Stringer](list []T) string {
	if len(list) == 0 {
		return "nothing"
	}
	const most = 8
	var texts []string
	for _, item := range list[:min(most, len(list))] {
		texts = append(texts, item.String())
	}
	if more := len(list) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(texts, "; ")
}
