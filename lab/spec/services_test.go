package spec

import (
	"strings"
	"testing"

	"github.com/trunkline/trunkline/sim/cloud"
)

func TestALabMayHaveInterfacesOfServicesAndElasticAddresses(t *testing.T) {
	s, err := Load("../../examples/beside-services.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	c, err := cloud.New(r.Cloud, cloud.Options{})
	if err != nil {
		t.Fatal(err)
	}
	account := c.State()
	for name, want := range map[string]struct{ kind, description, requester, subnet string }{
		"web":      {"interface", "ELB app/web", "amazon-elb", "a"},
		"ingress":  {"network_load_balancer", "ELB net/ingress", "amazon-elb", "a"},
		"egress":   {"nat_gateway", "Interface for NAT Gateway nat-egress", "128792236543", "a"},
		"resize":   {"lambda", "AWS Lambda VPC ENI-resize", "AROA3EXAMPLE:awslambda", "a"},
		"registry": {"vpc_endpoint", "VPC Endpoint Interface vpce-registry", "128792236543", "b"},
	} {
		i := account.HostInterface(name)
		if i == nil || string(i.Type) != want.kind || i.Description != want.description || i.Requester.ID != want.requester ||
			!i.Requester.Managed || i.Attachment.Status != cloud.Attached || account.Subnets[i.Subnet].Name != want.subnet {
			t.Errorf("%s: %+v, want %+v", name, i, want)
		}
		if nat := name == "egress"; nat != (len(i.Groups) == 0) || nat == i.SourceDestCheck {
			t.Errorf("%s: groups %v, source check %v", name, i.Groups, i.SourceDestCheck)
		}
	}
	primary := account.Primary(account.InstanceNamed("node1").ID)
	associated := 0
	for _, a := range account.Addresses {
		i, public, ok := account.AssociatedWith(a.ID)
		if ok && (i != primary && i != account.HostInterface("egress") || public.Private != i.PrimaryIPv4() || public.Public != a.Public) {
			t.Errorf("%v is associated with %s as %+v", a.Tags, i.ID, public)
		}
		if ok {
			associated++
		}
	}
	if len(account.Addresses) != 3 || associated != 2 {
		t.Errorf("%d elastic addresses, %d associated; want 3 and 2", len(account.Addresses), associated)
	}
}

func TestInvalidInterfacesOfServicesAndElasticAddressesAreReported(t *testing.T) {
	for lab, want := range map[string]string{
		"serviceInterfaces: [{name: x, service: toaster}]":                                     `serviceInterfaces[0].service: "toaster": must be one of lambda, load-balancer`,
		"serviceInterfaces: [{name: x, service: lambda}, {name: x, service: lambda}]":          `serviceInterfaces[1].name: "x": already the name of serviceInterfaces[0]`,
		"serviceInterfaces: [{name: node1, service: lambda}]":                                  `serviceInterfaces[0].name: "node1": already the name of a node`,
		"serviceInterfaces: [{name: x, service: lambda, subnet: z}]":                           `serviceInterfaces[0].subnet: "z": no such entry in subnets`,
		"serviceInterfaces: [{name: x, service: lambda, groups: [z]}]":                         `serviceInterfaces[0].groups[0]: "z": no such entry in securityGroups`,
		"serviceInterfaces: [{name: x, service: lambda, address: 10.9.0.1}]":                   `serviceInterfaces[0].address: "10.9.0.1": outside`,
		"elasticAddresses: [{name: x, of: nodeX}]":                                             `elasticAddresses[0].of: "nodeX": no such entry in nodes and serviceInterfaces`,
		"elasticAddresses: [{name: x, of: node1}]\nvpc: {internetGateway: false}":              `elasticAddresses[0].of: "node1": the VPC has no internet gateway`,
		"elasticAddresses: [{name: a}, {name: b}, {name: c}, {name: d}, {name: e}, {name: f}]": `AddressLimitExceeded`,
		"quotas: {interfaces: 4}\nserviceInterfaces: [{name: x, service: lambda}]":             `must be at least 5`,
		"cloud: none\nserviceInterfaces: [{name: x, service: lambda}]":                         `a lab without a cloud has no services`,
		"cloud: none\nelasticAddresses: [{name: x}]":                                           `a lab without a cloud has no elastic addresses`,
	} {
		s, err := Parse([]byte(lab))
		if err != nil {
			t.Fatalf("%s: %v", lab, err)
		}
		if _, err := s.Resolve(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", lab, err, want)
		}
	}
}
