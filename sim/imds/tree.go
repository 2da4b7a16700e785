package imds

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// dir is a directory of the tree. An entry is a dir, or a function that makes the
// document on request and may report that there is none.
type dir map[string]any

type document func() (string, bool)

// value returns a fixed document; an empty text is no document.
func value(text string) document {
	return func() (string, bool) { return text, text != "" }
}

// get returns the document or the listing at a path below the version. A directory
// matches with and without the trailing slash; a document without.
func (d dir) get(path string) (string, bool) {
	if path == "" {
		return d.list(), true
	}
	name, rest, deeper := strings.Cut(path, "/")
	switch entry := d[name].(type) {
	case dir:
		if len(entry) == 0 {
			return "", false
		}
		return entry.get(rest)
	case document:
		if deeper {
			return "", false
		}
		return entry()
	}
	return "", false
}

// list prints the entries as the service does: sorted, one per line, directories with
// a trailing slash, no newline at the end. Empty entries are omitted.
func (d dir) list() string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(d)) {
		switch entry := d[name].(type) {
		case dir:
			if len(entry) > 0 {
				lines = append(lines, name+"/")
			}
		case document:
			if _, ok := entry(); ok {
				lines = append(lines, name)
			}
		}
	}
	return strings.Join(lines, "\n")
}

// tree returns everything below a version.
func (s *Server) tree(i Instance) dir {
	root := dir{
		"meta-data": metadata(i),
		"dynamic":   dir{"instance-identity": identityTree(i, s)},
		"user-data": value(i.UserData),
	}
	if i.Role.Name != "" {
		root["meta-data"].(dir)["iam"] = roleTree(i, s.source, s.now)
	}
	return root
}

func metadata(i Instance) dir {
	domain, partition := cmp.Or(i.Domain, "amazonaws.com"), cmp.Or(i.Partition, "aws")
	d := dir{
		"ami-id":              value(i.Image),
		"ami-launch-index":    value("0"),
		"hostname":            value(i.Hostname),
		"instance-action":     value("none"),
		"instance-id":         value(string(i.ID)),
		"instance-life-cycle": value("on-demand"),
		"instance-type":       value(i.Type),
		"local-hostname":      value(i.Hostname),
		"reservation-id":      value(i.Reservation),
		"system":              value("nitro"),
		"placement": dir{
			"availability-zone":    value(i.Placement.Zone),
			"availability-zone-id": value(i.Placement.ZoneID),
			"region":               value(i.Placement.Region),
		},
		"services": dir{"domain": value(domain), "partition": value(partition)},
		"tags":     dir{"instance": tagTree(i.Tags)},
	}
	if len(i.Tags) == 0 {
		delete(d, "tags")
	}
	if len(i.Interfaces) > 0 {
		primary := i.Interfaces[0]
		d["mac"] = value(primary.MAC.String())
		d["local-ipv4"] = value(first(primary.IPv4))
		d["ipv6"] = value(first(primary.IPv6))
		d["security-groups"] = value(lines(primary.Groups, Group.name))
		if len(primary.IPv4) > 0 {
			if public, ok := primary.Public[primary.IPv4[0]]; ok {
				d["public-ipv4"] = value(public.String())
				d["public-hostname"] = value(primary.PublicNames[primary.IPv4[0]])
			}
		}
		macs := dir{}
		for _, face := range i.Interfaces {
			macs[face.MAC.String()] = interfaceTree(face)
		}
		d["network"] = dir{"interfaces": dir{"macs": macs}}
	}
	return d
}

func tagTree(tags map[string]string) dir {
	d := dir{}
	for key, v := range tags {
		// A tag may have an empty value; the document then exists and is empty.
		d[key] = document(func() (string, bool) { return v, true })
	}
	return d
}

// interfaceTree returns network/interfaces/macs/<mac>. Source: EC2 user guide,
// "Instance metadata categories".
func interfaceTree(f Interface) dir {
	subnet4, subnet6 := split(f.Subnet.CIDRs)
	vpc4, vpc6 := split(f.VPC.CIDRs)
	d := dir{
		"device-number":           value(strconv.Itoa(f.DeviceNumber)),
		"interface-id":            value(string(f.ID)),
		"ipv4-prefix":             value(lines(f.IPv4Prefixes, netip.Prefix.String)),
		"ipv6-prefix":             value(lines(f.IPv6Prefixes, netip.Prefix.String)),
		"ipv6s":                   value(lines(f.IPv6, netip.Addr.String)),
		"local-hostname":          value(f.Hostname),
		"local-ipv4s":             value(lines(f.IPv4, netip.Addr.String)),
		"mac":                     value(f.MAC.String()),
		"network-card":            value(strconv.Itoa(f.NetworkCard)),
		"owner-id":                value(f.Owner),
		"security-group-ids":      value(lines(f.Groups, Group.id)),
		"security-groups":         value(lines(f.Groups, Group.name)),
		"subnet-id":               value(string(f.Subnet.ID)),
		"subnet-ipv4-cidr-block":  value(head(subnet4)),
		"subnet-ipv6-cidr-blocks": value(lines(subnet6, netip.Prefix.String)),
		"vpc-id":                  value(string(f.VPC.ID)),
		"vpc-ipv4-cidr-block":     value(head(vpc4)),
		"vpc-ipv4-cidr-blocks":    value(lines(vpc4, netip.Prefix.String)),
		"vpc-ipv6-cidr-blocks":    value(lines(vpc6, netip.Prefix.String)),
	}
	if len(f.Public) > 0 {
		var publics []netip.Addr
		associations := dir{}
		for _, private := range f.IPv4 {
			if public, ok := f.Public[private]; ok {
				publics = append(publics, public)
				associations[public.String()] = value(private.String())
			}
		}
		d["public-ipv4s"] = value(lines(publics, netip.Addr.String))
		if len(f.IPv4) > 0 {
			d["public-hostname"] = value(f.PublicNames[f.IPv4[0]])
		}
		d["ipv4-associations"] = associations
	}
	return d
}

// roleTree returns meta-data/iam of an instance with a role.
func roleTree(i Instance, source Source, now func() time.Time) dir {
	return dir{
		"info": document(func() (string, bool) {
			return indented(struct {
				Code, LastUpdated, InstanceProfileArn, InstanceProfileId string // AWS's JSON names
			}{"Success", stamp(now()), i.Role.ProfileARN, i.Role.ProfileID})
		}),
		"security-credentials": dir{i.Role.Name: document(func() (string, bool) {
			c, ok := source.Credentials(i.ID)
			if !ok {
				return "", false
			}
			return indented(struct {
				Code, LastUpdated, Type, AccessKeyId, SecretAccessKey, Token, Expiration string // AWS's JSON names
			}{"Success", stamp(c.Updated), "AWS-HMAC", c.AccessKeyID, c.SecretAccessKey, c.Token, stamp(c.Expires)})
		})},
	}
}

// identity returns the instance identity document.
func identity(i Instance) (string, bool) {
	architecture := i.Architecture
	if architecture == "" {
		architecture = "x86_64"
	}
	private := ""
	if len(i.Interfaces) > 0 {
		private = first(i.Interfaces[0].IPv4)
	}
	return indented(struct {
		AccountID    string    `json:"accountId"`
		Architecture string    `json:"architecture"`
		Zone         string    `json:"availabilityZone"`
		Billing      *[]string `json:"billingProducts"`
		DevPay       *[]string `json:"devpayProductCodes"`
		Marketplace  *[]string `json:"marketplaceProductCodes"`
		Image        string    `json:"imageId"`
		Instance     string    `json:"instanceId"`
		Type         string    `json:"instanceType"`
		Kernel       *string   `json:"kernelId"`
		Pending      string    `json:"pendingTime"`
		Private      string    `json:"privateIp"`
		RAMDisk      *string   `json:"ramdiskId"`
		Region       string    `json:"region"`
		Version      string    `json:"version"`
	}{
		AccountID: i.Account, Architecture: architecture, Zone: i.Placement.Zone, Image: i.Image,
		Instance: string(i.ID), Type: i.Type, Pending: stamp(i.Launched), Private: private,
		Region: i.Placement.Region, Version: "2017-09-30",
	})
}

func indented(v any) (string, bool) {
	out, err := json.MarshalIndent(v, "", "  ")
	return string(out), err == nil
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

func first(addresses []netip.Addr) string {
	if len(addresses) == 0 {
		return ""
	}
	return addresses[0].String()
}

func head(prefixes []netip.Prefix) string {
	if len(prefixes) == 0 {
		return ""
	}
	return prefixes[0].String()
}

// split separates prefixes by family and keeps their order.
func split(all []netip.Prefix) (v4, v6 []netip.Prefix) {
	for _, p := range all {
		if vpc.FamilyOf(p.Addr()) == vpc.IPv4 {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	return v4, v6
}

// lines prints one item per line.
func lines[T any](items []T, text func(T) string) string {
	out := make([]string, len(items))
	for n, item := range items {
		out[n] = text(item)
	}
	return strings.Join(out, "\n")
}

func (g Group) id() string   { return string(g.ID) }
func (g Group) name() string { return g.Name }
