package ec2

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/query"
)

type describeTopology struct {
	query.DryRun
	Page
	IDs     []string `q:"InstanceId"`
	Filters []Filter `q:"Filter"`
}

// topologyXML is InstanceTopology. Source: API_InstanceTopology.html.
type topologyXML struct {
	ID     string   `q:"instanceId"`
	Type   string   `q:"instanceType"`
	Nodes  []string `q:"networkNodeSet"`
	Zone   string   `q:"availabilityZone"`
	ZoneID string   `q:"zoneId"`
}

type topologyList struct {
	Instances []topologyXML `q:"instanceSet"`
	NextToken string        `q:"nextToken,omitempty"`
}

// hasTopology reports whether EC2 describes the topology of a type. Source: EC2 user
// guide, "Prerequisites for Amazon EC2 instance topology".
func hasTopology(instanceType string) bool {
	for _, family := range []string{"hpc6a", "hpc6id", "hpc7a", "hpc7g", "p3dn", "p4d", "p4de", "p5", "trn1", "trn1n"} {
		if strings.HasPrefix(instanceType, family+".") {
			return true
		}
	}
	return false
}

// newTopologyXML shows the network nodes above an instance, the top layer first: one for
// each zone, subnet and instance.
func newTopologyXML(n *cloud.Instance) topologyXML {
	return topologyXML{
		ID: string(n.ID), Type: n.Type, Zone: n.Zone, ZoneID: ZoneID(n.Zone),
		Nodes: []string{networkNode(n.Zone), networkNode(string(n.Subnet)), networkNode(string(n.ID))},
	}
}

// networkNode makes an id in EC2's form from what shares the node.
func networkNode(shared string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(shared)) // it never fails
	return fmt.Sprintf("nn-0%016x", h.Sum64())
}

func listTopology(c *query.Call, r *describeTopology) (*topologyList, error) {
	out, next, err := listPage(c, listing[*cloud.Instance]{
		kind: cloud.KindInstance, set: "instances", all: cloud.Sorted(c.State.Instances), ids: r.IDs, filters: r.Filters, page: r.Page,
		most: smallPage, usual: 20,
		id:    func(n *cloud.Instance) string { return string(n.ID) },
		only:  func(n *cloud.Instance) bool { return n.State == cloud.Running && hasTopology(n.Type) },
		attrs: topologyAttributes(),
	}, newTopologyXML)
	return &topologyList{out, next}, err
}

// topologyAttributes are the filters of DescribeInstanceTopology.
func topologyAttributes() attributes[*cloud.Instance] {
	return attributes[*cloud.Instance]{
		"availability-zone": func(n *cloud.Instance) []string { return one(n.Zone) },
		"instance-type":     func(n *cloud.Instance) []string { return one(n.Type) },
		"zone-id":           func(n *cloud.Instance) []string { return one(ZoneID(n.Zone)) },
	}
}
