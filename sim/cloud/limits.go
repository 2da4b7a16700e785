package cloud

import "github.com/trunkline/trunkline/internal/core/vpc"

// typeLimits returns the limits of each instance type. Source: EC2 user guide,
// "Maximum IP addresses per network interface"; branches per size as AWS's VPC
// resource controller lists them. Those with several network cards: AWS's VPC CNI,
// pkg/vpc/vpc_ip_resource_limit.go, and EC2 user guide, "Network cards" and "Maximize
// network bandwidth on instances with multiple network cards"; of these, the branches of
// c7gn.metal, c8gn.metal-48xl, p5 and hpc7a are not known here.
func typeLimits() map[string]vpc.Limits {
	nitro := func(enis, addresses, branches int) vpc.Limits {
		return vpc.Limits{ENIs: enis, IPv4: addresses, IPv6: addresses, Branches: branches, Nitro: true}
	}
	metal := func(enis, branches int) vpc.Limits {
		l := nitro(enis, 50, branches)
		l.BareMetal = true
		return l
	}
	xen := func(enis, addresses int) vpc.Limits {
		return vpc.Limits{ENIs: enis, IPv4: addresses, IPv6: addresses}
	}
	m := map[string]vpc.Limits{
		"t2.micro": xen(2, 2), "t2.small": xen(3, 4), "t2.medium": xen(3, 6), "t2.large": xen(3, 12),
		"m4.large": xen(2, 10), "m4.xlarge": xen(4, 15),
		"t3.nano": nitro(2, 2, 0), "t3.micro": nitro(2, 2, 0), "t3.small": nitro(3, 4, 0),
		"t3.medium": nitro(3, 6, 0), "t3.large": nitro(3, 12, 0),
		"t3.xlarge": nitro(4, 15, 0), "t3.2xlarge": nitro(4, 15, 0),
		"t4g.medium": nitro(3, 6, 0), "t4g.large": nitro(3, 12, 0),
		"m6g.medium": nitro(2, 4, 4), "c6g.medium": nitro(2, 4, 4), "r6g.medium": nitro(2, 4, 4),
		"m5.metal": metal(15, 120), "c5.metal": metal(15, 107), "r5.metal": metal(15, 120),
	}
	for _, family := range []string{"m5", "c5", "r5", "m6i", "c6i", "r6i", "m6g", "c6g", "r6g"} {
		m[family+".large"] = nitro(3, 10, 9)
		m[family+".xlarge"] = nitro(4, 15, 18)
		m[family+".2xlarge"] = nitro(4, 15, 38)
		m[family+".4xlarge"] = nitro(8, 30, 54)
	}
	for _, family := range []string{"m5", "r5", "m6i", "c6i", "r6i", "m6g", "c6g", "r6g"} {
		m[family+".8xlarge"] = nitro(8, 30, 54)
		m[family+".12xlarge"] = nitro(8, 30, 54)
		m[family+".16xlarge"] = nitro(15, 50, 107)
	}
	for _, family := range []string{"m6i", "c6i", "r6i"} {
		m[family+".8xlarge"] = nitro(8, 30, 84)
		m[family+".12xlarge"] = nitro(8, 30, 114)
	}
	m["c5.9xlarge"], m["c5.12xlarge"], m["c5.18xlarge"] = nitro(8, 30, 54), nitro(8, 30, 54), nitro(15, 50, 107)
	m["m5.24xlarge"], m["c5.24xlarge"], m["r5.24xlarge"] = nitro(15, 50, 107), nitro(15, 50, 107), nitro(15, 50, 107)
	m["c7gn.16xlarge"] = withEFAs(1, nitro(15, 50, 107))
	m["c7gn.metal"] = withEFAs(1, metal(15, 0))
	m["c8gn.metal-48xl"] = withEFAs(2, metal(12, 0))
	m["p5.48xlarge"] = withEFAs(32, nitro(2, 50, 0))
	m["trn1.32xlarge"] = withEFAs(8, nitro(5, 50, 82))
	for _, size := range []string{"12xlarge", "24xlarge", "48xlarge", "96xlarge"} {
		m["hpc7a."+size] = withEFAs(2, nitro(2, 50, 0))
	}
	return m
}

// withEFAs are the limits of a type with as many network cards as EFAs: each card takes one
// (github.com/hashicorp/terraform-provider-aws/issues/24043).
func withEFAs(cards int, ofCard vpc.Limits) vpc.Limits {
	ofCard.Cards, ofCard.EFAs = cards, cards
	return ofCard
}

// TypeLimits returns every instance type known to the account.
func (c *Cloud) TypeLimits() map[string]vpc.Limits { return c.types }
