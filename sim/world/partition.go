package world

import (
	"slices"
	"strings"
)

// partition is a group of regions with endpoints under the same domains. Source: the
// rules of the SDK's endpoints, partitions.json in aws-sdk-go-v2
// (internal/endpoints/awsrulesfn).
type partition struct {
	name     string
	regions  string // how the names of its regions begin; empty: all others
	domain   string // of its endpoints with IPv4 only
	dual     string // of its endpoints with both families
	signsFor string // the region of the global STS endpoint; empty: it has none
}

// partitions returns all partitions, the default one last.
func partitions() []partition {
	return []partition{
		{name: "aws-cn", regions: "cn-", domain: "amazonaws.com.cn", dual: "api.amazonwebservices.com.cn"},
		{name: "aws-us-gov", regions: "us-gov-", domain: "amazonaws.com", dual: "api.aws"},
		{name: "aws-iso", regions: "us-iso-", domain: "c2s.ic.gov", dual: "api.aws.ic.gov"},
		{name: "aws-iso-b", regions: "us-isob-", domain: "sc2s.sgov.gov", dual: "api.aws.scloud"},
		{name: "aws-iso-e", regions: "eu-isoe-", domain: "cloud.adc-e.uk", dual: "api.cloud-aws.adc-e.uk"},
		{name: "aws-iso-f", regions: "us-isof-", domain: "csp.hci.ic.gov", dual: "api.aws.hci.ic.gov"},
		{name: "aws-eusc", regions: "eusc-", domain: "amazonaws.eu", dual: "api.amazonwebservices.eu"},
		{name: "aws", domain: "amazonaws.com", dual: "api.aws", signsFor: "us-east-1"},
	}
}

func partitionOf(region string) partition {
	all := partitions()
	return all[slices.IndexFunc(all, func(p partition) bool { return strings.HasPrefix(region, p.regions) })]
}

// domains are those of all endpoints of the partition.
func (p partition) domains() []string { return []string{p.domain, p.dual} }

// globalSTS is the STS endpoint without a region; empty if the partition has none.
func (p partition) globalSTS() string {
	if p.signsFor == "" {
		return ""
	}
	return "sts." + p.domain
}

// endpoints are the host names of EC2 and STS in a region.
func (p partition) endpoints(region string) []string {
	var out []string
	for _, service := range []string{"ec2", "sts"} {
		for _, domain := range p.domains() {
			out = append(out, service+"."+region+"."+domain)
		}
	}
	if global := p.globalSTS(); global != "" {
		out = append(out, global)
	}
	return out
}
