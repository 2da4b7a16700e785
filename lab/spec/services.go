package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// ServiceInterface is an interface that a service of AWS made in the account for itself: it
// is in use, takes an address of its subnet, and no caller of the account may change it. Its
// address does not answer.
type ServiceInterface struct {
	Name string `json:"name"`
	// Service is load-balancer, network-load-balancer, nat-gateway, lambda or vpc-endpoint.
	Service string   `json:"service"`
	Subnet  string   `json:"subnet,omitempty"` // by name; empty is the first with IPv4
	Groups  []string `json:"groups,omitempty"` // by name; empty is the VPC's default group
	Address string   `json:"address,omitempty"`
	// Tags of the interface.
	Tags map[string]string `json:"tags,omitempty"`
}

// ElasticAddress is an elastic address of the account.
type ElasticAddress struct {
	Name string `json:"name"`
	// Of is the name of a node or of a service's interface, which has it as its public
	// address; empty: it is not associated.
	Of string `json:"of,omitempty"`
}

// service is how EC2 shows the interfaces of a service.
type service struct {
	kind        vpc.InterfaceType
	description string // the interface's name follows
	requester   string
}

// awsServices by the name in lab.yaml. The requester of NAT gateways and endpoints is an
// account of AWS, which differs from region to region. Sources: responses of
// DescribeNetworkInterfaces in public reports; EC2 user guide, "Requester-managed network
// interfaces"; EC2 API reference, NetworkInterface, InterfaceType.
func awsServices() map[string]service {
	return map[string]service{
		"load-balancer":         {vpc.TypeInterface, "ELB app/", "amazon-elb"},
		"network-load-balancer": {"network_load_balancer", "ELB net/", "amazon-elb"},
		"nat-gateway":           {"nat_gateway", "Interface for NAT Gateway nat-", "128792236543"},
		"lambda":                {"lambda", "AWS Lambda VPC ENI-", "AROA3EXAMPLE:awslambda"},
		"vpc-endpoint":          {"vpc_endpoint", "VPC Endpoint Interface vpce-", "128792236543"},
	}
}

// withServiceDefaults puts interfaces of services into the first subnet with IPv4.
func (s Spec) withServiceDefaults() Spec {
	s.ServiceInterfaces = slices.Clone(s.ServiceInterfaces)
	for i := range s.ServiceInterfaces {
		if for4 := s.subnets4(); len(for4) > 0 {
			setDefault(&s.ServiceInterfaces[i].Subnet, for4[0].Name)
		}
	}
	return s
}

// addServiceInterfaces checks the interfaces of services and adds them as hosts that the
// fabric does not have.
func (m *members) addServiceInterfaces(list []ServiceInterface) {
	if m.noCloud && len(list) > 0 {
		m.add("serviceInterfaces", "", "a lab without a cloud has no services of AWS (cloud: %s)", CloudNone)
	}
	all := awsServices()
	names(m.problems, "serviceInterfaces", list, func(i ServiceInterface) string { return i.Name })
	for n, i := range list {
		at := fmt.Sprintf("serviceInterfaces[%d].", n)
		m.label(at+"name", i.Name, true)
		if i.Name == ControlPlaneHost || slices.ContainsFunc(m.instances, func(o cloud.InstanceSpec) bool { return o.Name == i.Name }) {
			m.add(at+"name", i.Name, "already the name of a node or of the control plane")
		}
		of, ok := all[i.Service]
		if !ok {
			m.add(at+"service", i.Service, "must be one of %s", strings.Join(slices.Sorted(maps.Keys(all)), ", "))
		}
		known(m.problems, at+"subnet", i.Subnet, "subnets", m.network.byName)
		if len(i.Groups) > 0 {
			m.groups.ofInterface(at+"groups", i.Groups)
		}
		m.hosts = append(m.hosts, cloud.HostSpec{
			Name: i.Name, Subnet: i.Subnet, Groups: i.Groups, Address: m.network.primaryAddress(at+"address", i.Address, i.Subnet),
			Description: of.description + i.Name, Type: of.kind, Requester: of.requester, Tags: i.Tags,
		})
	}
}

// elasticAddresses checks the account's elastic addresses.
func (m *members) elasticAddresses(list []ElasticAddress, interfaces []ServiceInterface) (out []cloud.AddressSpec) {
	names(m.problems, "elasticAddresses", list, func(a ElasticAddress) string { return a.Name })
	if m.noCloud && len(list) > 0 {
		m.add("elasticAddresses", "", "a lab without a cloud has no elastic addresses (cloud: %s)", CloudNone)
	}
	owners := map[string]int{}
	for n, i := range m.instances {
		owners[i.Name] = n
	}
	for n, i := range interfaces {
		owners[i.Name] = n
	}
	for n, a := range list {
		at := fmt.Sprintf("elasticAddresses[%d].", n)
		m.label(at+"name", a.Name, true)
		if a.Of != "" {
			known(m.problems, at+"of", a.Of, "nodes and serviceInterfaces", owners)
			if !m.network.vpc.InternetGateway {
				m.add(at+"of", a.Of, "the VPC has no internet gateway (vpc.internetGateway is false)")
			}
		}
		out = append(out, cloud.AddressSpec{Name: a.Name, Of: a.Of})
	}
	return out
}
