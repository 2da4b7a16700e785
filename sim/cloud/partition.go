package cloud

import (
	"slices"
	"strings"
)

// Partition is a group of regions with endpoints under the same domains. Source: the
// rules of the SDK's endpoints, partitions.json in aws-sdk-go-v2
// (internal/endpoints/awsrulesfn).
type Partition struct {
	Name     string
	Domain   string // of its endpoints with IPv4 only
	SignsFor string // the region of the global STS endpoint; empty: it has none
	regions  string // how the names of its regions begin; empty: all others
	dual     string // of its endpoints with both families
}

// partitions returns all partitions, the default one last.
func partitions() []Partition {
	return []Partition{
		{Name: "aws-cn", regions: "cn-", Domain: "amazonaws.com.cn", dual: "api.amazonwebservices.com.cn"},
		{Name: "aws-us-gov", regions: "us-gov-", Domain: "amazonaws.com", dual: "api.aws"},
		{Name: "aws-iso", regions: "us-iso-", Domain: "c2s.ic.gov", dual: "api.aws.ic.gov"},
		{Name: "aws-iso-b", regions: "us-isob-", Domain: "sc2s.sgov.gov", dual: "api.aws.scloud"},
		{Name: "aws-iso-e", regions: "eu-isoe-", Domain: "cloud.adc-e.uk", dual: "api.cloud-aws.adc-e.uk"},
		{Name: "aws-iso-f", regions: "us-isof-", Domain: "csp.hci.ic.gov", dual: "api.aws.hci.ic.gov"},
		{Name: "aws-eusc", regions: "eusc-", Domain: "amazonaws.eu", dual: "api.amazonwebservices.eu"},
		{Name: "aws", Domain: "amazonaws.com", dual: "api.aws", SignsFor: "us-east-1"},
	}
}

// PartitionOf returns the partition of a region.
func PartitionOf(region string) Partition {
	all := partitions()
	return all[slices.IndexFunc(all, func(p Partition) bool { return strings.HasPrefix(region, p.regions) })]
}

// Domains are those of all endpoints of the partition.
func (p Partition) Domains() []string { return []string{p.Domain, p.dual} }

// GlobalSTS is the STS endpoint without a region; empty if the partition has none.
func (p Partition) GlobalSTS() string {
	if p.SignsFor == "" {
		return ""
	}
	return "sts." + p.Domain
}

// Endpoints are the host names of EC2 and STS in a region.
func (p Partition) Endpoints(region string) []string {
	var out []string
	for _, service := range []string{"ec2", "sts"} {
		for _, domain := range p.Domains() {
			out = append(out, service+"."+region+"."+domain)
		}
	}
	if global := p.GlobalSTS(); global != "" {
		out = append(out, global)
	}
	return out
}
