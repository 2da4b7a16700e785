package policy

import (
	"fmt"
	"strings"
)

// Text describes what a rule matches, as in "from pods app=web of shop, port 5432/TCP".
func (r Rule) Text(d Direction) string {
	word := "from "
	if d == Egress {
		word = "to "
	}
	return word + r.peersText() + ", " + r.portsText()
}

func (r Rule) peersText() string {
	if r.AnyPeer {
		return "any peer"
	}
	texts := make([]string, len(r.Peers))
	for i, p := range r.Peers {
		texts[i] = p.String()
	}
	return listed(texts, "no peer")
}

func (r Rule) portsText() string {
	if r.AnyPort {
		return "any port"
	}
	texts := make([]string, len(r.Ports))
	for i, p := range r.Ports {
		texts[i] = p.String()
	}
	return listed(texts, "no port")
}

// listed joins the first texts of a list.
func listed(texts []string, none string) string {
	const most = 6
	switch {
	case len(texts) == 0:
		return none
	case len(texts) > most:
		return fmt.Sprintf("%s or %d more", strings.Join(texts[:most], " or "), len(texts)-most)
	default:
		return strings.Join(texts, " or ")
	}
}

func (p Peer) String() string {
	switch {
	case p.Pods != nil:
		return p.Pods.String()
	case p.Block != nil && len(p.Block.Except) > 0:
		return fmt.Sprintf("%s except %s", p.Block.Prefix, strings.Trim(fmt.Sprint(p.Block.Except), "[]"))
	case p.Block != nil:
		return p.Block.Prefix.String()
	default:
		return "the name " + p.Name
	}
}

// String describes the pods that a set selects.
func (s PodSet) String() string {
	pods := "all pods"
	if s.Pods != nil && !s.Pods.Empty() {
		pods = "pods " + s.Pods.String()
	}
	switch {
	case s.Namespace != "":
		return pods + " of " + s.Namespace
	case s.Namespaces != nil && !s.Namespaces.Empty():
		return pods + " of namespaces " + s.Namespaces.String()
	default:
		return pods + " of all namespaces"
	}
}

func (p Port) String() string {
	switch {
	case p.Name != "":
		return fmt.Sprintf("port %s/%s", p.Name, p.Protocol)
	case p.First == p.Last:
		return fmt.Sprintf("port %d/%s", p.First, p.Protocol)
	case p.First == 0 && p.Last == allPorts:
		return fmt.Sprintf("any port of %s", p.Protocol)
	default:
		return fmt.Sprintf("ports %d-%d/%s", p.First, p.Last, p.Protocol)
	}
}
