package spec

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
)

// AWS's formats of region names and instance types.
var (
	regionName = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]$`)
	typeName   = regexp.MustCompile(`^[a-z0-9-]+\.[a-z0-9-]+$`)
)

// account checks the fields of the account, and returns it without a network.
func account(p *problems, s Spec) cloud.Spec {
	p.label("name", s.Name, true)
	if !regionName.MatchString(s.Region) {
		p.add("region", s.Region, "must be the name of a region such as %s", DefaultRegion)
	}
	if len(s.Account) != 12 || !isDigits(s.Account) {
		p.add("account", s.Account, "must be twelve digits in quotes, such as %q", DefaultAccount)
	}
	if s.Cloud != CloudAWS && s.Cloud != CloudNone {
		p.add("cloud", s.Cloud, "must be %s or %s", CloudAWS, CloudNone)
	}
	return cloud.Spec{
		Region: s.Region, Account: s.Account, Seed: s.Seed,
		Quotas: quotas(p, s.Quotas), Limits: instanceTypes(p, s.InstanceTypes),
	}
}

func quotas(p *problems, q Quotas) cloud.Quotas {
	for field, v := range map[string]int{
		"quotas.routesPerTable": q.RoutesPerTable, "quotas.rulesPerGroup": q.RulesPerGroup,
		"quotas.groupsPerInterface": q.GroupsPerInterface, "quotas.interfaces": q.Interfaces,
	} {
		if v < 0 {
			p.add(field, strconv.Itoa(v), "must not be negative; leave it out for EC2's default")
		}
	}
	if q.GroupsPerInterface > 16 {
		p.add("quotas.groupsPerInterface", strconv.Itoa(q.GroupsPerInterface), "must not exceed 16, EC2's maximum")
	}
	return cloud.Quotas{
		RoutesPerTable: q.RoutesPerTable, RulesPerGroup: q.RulesPerGroup,
		GroupsPerInterface: q.GroupsPerInterface, Interfaces: q.Interfaces, TrunkCalls: q.TrunkCalls,
	}
}

// instanceTypes validates a lab's own instance types and returns their limits; nil if it
// has none.
func instanceTypes(p *problems, types map[string]InstanceType) map[string]vpc.Limits {
	var limits map[string]vpc.Limits
	for name, t := range types {
		field := "instanceTypes." + name
		if t.ENIs < 1 || t.ENIs > 15 {
			p.add(field+".enis", strconv.Itoa(t.ENIs), "must be between 1 and 15")
		}
		if t.IPv4 < 2 || t.IPv4 > 50 {
			p.add(field+".ipv4", strconv.Itoa(t.IPv4), "must be between 2 and 50")
		}
		if t.IPv6 < 0 || t.IPv6 > 50 {
			p.add(field+".ipv6", strconv.Itoa(t.IPv6), "must be between 0 and 50")
		}
		if t.Branches < 0 {
			p.add(field+".branches", strconv.Itoa(t.Branches), "must not be negative")
		}
		if !typeName.MatchString(name) {
			p.add("instanceTypes", name, "must be the name of an instance type such as %s", DefaultInstanceType)
		}
		l := vpc.Limits{ENIs: t.ENIs, IPv4: t.IPv4, IPv6: t.IPv6, Branches: t.Branches, Nitro: true}
		if limits == nil {
			limits = map[string]vpc.Limits{}
		}
		limits[name] = l
	}
	return limits
}

// builtinTypes returns the instance types of the embedded EC2.
func builtinTypes() map[string]vpc.Limits {
	empty, err := cloud.New(cloud.Spec{
		Region: DefaultRegion, Account: DefaultAccount,
		VPC: cloud.VPCSpec{CIDRs: []netip.Prefix{netip.MustParsePrefix(DefaultCIDR)}},
	}, cloud.Options{})
	if err != nil {
		return map[string]vpc.Limits{} // every type is then reported as unknown
	}
	return maps.Clone(empty.TypeLimits())
}

// suggestTypes lists the types in the family of an unknown type and the file's own, or all
// families if the family is unknown too. types are all known ones.
func suggestTypes(unknown string, types, own map[string]vpc.Limits) string {
	family, _, _ := strings.Cut(unknown, ".")
	families, same, found := map[string]bool{}, []string{}, false
	for _, name := range slices.Sorted(maps.Keys(types)) {
		of, _, _ := strings.Cut(name, ".")
		families[of], found = true, found || of == family
		if _, isOwn := own[name]; isOwn || of == family {
			same = append(same, name)
		}
	}
	if found {
		return "one of " + strings.Join(same, ", ")
	}
	return "one of the families " + strings.Join(slices.Sorted(maps.Keys(families)), ", ") + ", such as " + DefaultInstanceType
}

func isDigits(s string) bool {
	for _, c := range s {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
