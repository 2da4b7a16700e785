package branches

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
)

// Branch is a branch interface of a node, as its controller recorded it.
type Branch struct {
	Node        string    `json:"node"`
	ENI         string    `json:"eni,omitempty"`
	VLAN        int32     `json:"vlan,omitempty"`
	State       string    `json:"state"` // a v1alpha1.BranchPhase, or Associated by AWS's controller
	Since       time.Time `json:"since,omitzero"`
	Pod         string    `json:"pod,omitempty"` // NAMESPACE/NAME
	PodUID      types.UID `json:"podUID,omitempty"`
	Groups      []string  `json:"groups,omitempty"`
	Addresses   []string  `json:"addresses,omitempty"`
	MAC         string    `json:"mac,omitempty"`
	Association string    `json:"association,omitempty"`
	// Call without a known outcome, with the reason of the last failure.
	Call string `json:"call,omitempty"`
}

// Trunk is the trunk of a node.
type Trunk struct {
	Node    string `json:"node"`
	ENI     string `json:"eni,omitempty"`
	State   string `json:"state"` // a v1alpha1.TrunkPhase, or Attached by AWS's controller
	Device  int32  `json:"device,omitempty"`
	Manager string `json:"manager"` // Managers of a trunk
	// ENIConfig names the subnet of new branches; empty without custom networking.
	ENIConfig string `json:"eniConfig,omitempty"`
	// Refusal is why no interface is created, by the ENIConfig.
	Refusal string `json:"refusal,omitempty"`
	// Delays are what EC2 refused, and until when it is not tried again.
	Delays []string `json:"delays,omitempty"`
}

// Managers of a trunk.
const (
	ManagerTrunkline = "trunkline"
	ManagerAWS       = "vpc-resource-controller"
)

// State of what AWS's controller recorded, which has no phases.
const (
	stateAttached   = "Attached"
	stateAssociated = "Associated"
)

// List is the trunks and branches of nodes.
type List struct {
	Trunks   []Trunk  `json:"trunks"`
	Branches []Branch `json:"branches"`
	nodes    []string // with a CNINode
}

// Of lists the trunks and branches in the status of CNINodes, by node and VLAN.
func Of(nodes []v1alpha1.CNINode) List {
	l := List{Trunks: []Trunk{}, Branches: []Branch{}}
	for i := range nodes {
		n := &nodes[i]
		l.nodes = append(l.nodes, n.Name)
		l.own(n.Name, n.Status.Trunkline)
		l.managed(n.Name, n.Status.TrunkInterface)
	}
	slices.SortFunc(l.Trunks, func(a, b Trunk) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.ENI, b.ENI)) })
	slices.SortFunc(l.Branches, func(a, b Branch) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.VLAN, b.VLAN), cmp.Compare(a.ENI, b.ENI))
	})
	return l
}

func (l *List) own(node string, ledger *v1alpha1.BranchLedger) {
	if ledger == nil {
		return
	}
	if ledger.Unreadable != "" {
		l.Trunks = append(l.Trunks, Trunk{Node: node, State: "invalid record", Manager: ManagerTrunkline, Refusal: ledger.Unreadable})
		return
	}
	row := Trunk{Node: node, State: "none", Manager: ManagerTrunkline, Delays: delays(ledger), Refusal: customRefusal(ledger)}
	if c := ledger.CustomNetworking; c != nil {
		row.ENIConfig = c.ENIConfig
	}
	if t := ledger.Trunk; t != nil {
		row.ENI, row.State, row.Device = t.ENIID, string(t.Phase), t.DeviceIndex
	}
	if ledger.Trunk != nil || len(row.Delays) > 0 || row.Refusal != "" {
		l.Trunks = append(l.Trunks, row)
	}
	for _, b := range ledger.Branches {
		l.Branches = append(l.Branches, branchOf(node, b))
	}
}

// customRefusal is why no interface of a node with custom networking is created; empty if they are.
func customRefusal(ledger *v1alpha1.BranchLedger) string {
	if c := ledger.CustomNetworking; c != nil && c.Reason != "" {
		return c.Reason + ": " + c.Message
	}
	return ""
}

func delays(ledger *v1alpha1.BranchLedger) (list []string) {
	for _, b := range ledger.Backoffs {
		list = append(list, fmt.Sprintf("%s: %s after %d tries, not before %s: %s", b.Key, b.Reason, b.Tries, b.Until.UTC().Format(time.TimeOnly), b.Message))
	}
	return list
}

func branchOf(node string, b v1alpha1.BranchRecord) Branch {
	out := Branch{
		Node: node, ENI: b.ENIID, VLAN: b.VLANID, State: string(b.Phase), Since: b.Since.Time, Groups: b.SecurityGroups, MAC: b.MAC,
		Association: b.AssociationID, Addresses: addresses(b.IPv4, b.IPv6),
	}
	if b.Pod != nil {
		out.Pod, out.PodUID = b.Pod.Namespace+"/"+b.Pod.Name, b.Pod.UID
	}
	if c := b.Call; c != nil {
		out.Call = c.Kind
		if c.Tries > 1 {
			out.Call = fmt.Sprintf("%s, try %d", c.Kind, c.Tries)
		}
	}
	return out
}

func (l *List) managed(node string, t *v1alpha1.TrunkInterface) {
	if t == nil {
		return
	}
	l.Trunks = append(l.Trunks, Trunk{Node: node, ENI: t.ID, State: stateAttached, Device: t.DeviceIndex, Manager: ManagerAWS})
	for _, b := range t.Branches {
		out := Branch{Node: node, ENI: b.ID, VLAN: b.VLANID, State: stateAssociated, Groups: b.SecurityGroups, MAC: b.MACAddress, Association: b.AssociationID}
		for _, cidr := range slices.Concat(b.IPv4CIDRs, b.IPv6CIDRs) {
			out.Addresses = append(out.Addresses, strings.TrimSuffix(strings.TrimSuffix(cidr, "/32"), "/128"))
		}
		l.Branches = append(l.Branches, out)
	}
}

func addresses(list ...string) []string {
	return slices.DeleteFunc(list, func(a string) bool { return a == "" })
}

// Only keeps the trunks and branches of nodes; of all for an empty list. A node without a CNINode is
// an error.
func (l List) Only(nodes []string) (List, error) {
	if len(nodes) == 0 {
		return l, nil
	}
	for _, n := range nodes {
		if !slices.Contains(l.nodes, n) {
			return l, fmt.Errorf("--node %s: the API server has no CNINode of that name; it has %s", n, strings.Join(l.nodes, ", "))
		}
	}
	return List{
		nodes:    l.nodes,
		Trunks:   slices.DeleteFunc(slices.Clone(l.Trunks), func(t Trunk) bool { return !slices.Contains(nodes, t.Node) }),
		Branches: slices.DeleteFunc(slices.Clone(l.Branches), func(b Branch) bool { return !slices.Contains(nodes, b.Node) }),
	}, nil
}
