package world

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/dns"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/imds"
)

// metadata is the account as instance metadata returns it, possibly with a lag.
type metadata struct{ w *World }

// ByAddress implements imds.Source.
func (m metadata) ByAddress(a netip.Addr) (imds.Instance, bool) {
	s := m.w.cloud.StateAgo(time.Duration(m.w.faults.Plan().MetadataLag))
	owner := m.w.State().Owner(a) // the caller is identified without lag
	if owner == nil || owner.Attachment == nil {
		return imds.Instance{}, false
	}
	n := s.Instances[owner.Attachment.Instance]
	if n == nil || n.State == cloud.Terminated {
		return imds.Instance{}, false
	}
	return describe(s, n), true
}

func describe(s *cloud.State, n *cloud.Instance) imds.Instance {
	zone := s.Subnets[n.Subnet].Zone
	out := imds.Instance{
		ID: n.ID, Type: n.Type, Image: ec2.ImageID, Account: s.Account,
		Placement:   imds.Placement{Region: s.Region, Zone: zone, ZoneID: ec2.ZoneID(zone)},
		Reservation: ec2.ReservationID(n.ID), Launched: n.Launched, Tags: maps.Clone(n.Tags),
		Options: imds.Options{TokensRequired: n.Metadata.TokensRequired, HopLimit: n.Metadata.HopLimit, IPv6: n.Metadata.IPv6},
	}
	if n.Role != "" {
		out.Role = imds.Role{Name: n.Role, ProfileARN: ec2.ProfileARN(s.Account, n.Role), ProfileID: ec2.ProfileID(n.Role)}
	}
	for _, i := range s.InterfacesOf(n.ID) {
		if i.Attachment.Status != cloud.Attached && i.Attachment.DeviceIndex != 0 {
			continue
		}
		out.Interfaces = append(out.Interfaces, describeInterface(s, i))
	}
	if len(out.Interfaces) > 0 {
		out.Hostname = out.Interfaces[0].Hostname
	}
	return out
}

func describeInterface(s *cloud.State, i *cloud.Interface) imds.Interface {
	n := s.Subnets[i.Subnet]
	out := imds.Interface{
		ID: i.ID, MAC: i.MAC, DeviceNumber: i.Attachment.DeviceIndex, NetworkCard: i.Attachment.NetworkCard,
		VPC: imds.VPC{ID: s.VPC.ID, CIDRs: slices.Clone(s.VPC.CIDRs)}, Subnet: imds.Subnet{ID: n.ID, CIDRs: []netip.Prefix{n.CIDR}},
		Hostname: vpc.PrivateDNSName(i.IPv4[0], s.Region), Owner: s.Account,
		IPv4: i.IPv4, IPv6: i.IPv6, IPv4Prefixes: i.IPv4Prefixes, IPv6Prefixes: i.IPv6Prefixes,
	}
	if n.CIDR6.IsValid() {
		out.Subnet.CIDRs = append(out.Subnet.CIDRs, n.CIDR6)
	}
	if s.VPC.CIDR6.IsValid() {
		out.VPC.CIDRs = append(out.VPC.CIDRs, s.VPC.CIDR6)
	}
	for _, id := range i.Groups {
		out.Groups = append(out.Groups, imds.Group{ID: id, Name: s.Groups[id].Name})
	}
	return out
}

// Lifetime of the credentials in instance metadata, and how long before their expiry
// they are replaced.
const (
	profileLife  = 6 * time.Hour
	profileRenew = 30 * time.Minute
)

// profiles are the credentials of each instance's role. The zero value is ready.
type profiles struct {
	mu      sync.Mutex // guards current
	current map[vpc.InstanceID]iam.Credentials
}

// forget drops a terminated instance's credentials; issued ones expire.
func (p *profiles) forget(id vpc.InstanceID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.current, id)
}

// Credentials implements imds.Source.
func (m metadata) Credentials(id vpc.InstanceID) (imds.Credentials, bool) {
	n := m.w.State().Instances[id]
	if n == nil || n.Role == "" {
		return imds.Credentials{}, false
	}
	p := &m.w.profiles
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.current[id]
	if c.Expires.Sub(m.w.config.Now()) < profileRenew {
		s := m.w.State()
		made, _, err := m.w.iam.Issue(iam.Session{
			Role: n.Role, Name: string(id), Lifetime: profileLife,
			Instance: fmt.Sprintf("arn:aws:ec2:%s:%s:instance/%s", s.Region, s.Account, id),
		})
		if err != nil {
			m.w.log.Error("no credentials for instance", "instance", string(id), "err", err)
			return imds.Credentials{}, false
		}
		if p.current == nil {
			p.current = map[vpc.InstanceID]iam.Credentials{}
		}
		p.current[id], c = made, made
	}
	return imds.Credentials{
		AccessKeyID: c.AccessKeyID, SecretAccessKey: c.SecretAccessKey, Token: c.Token, Updated: c.Issued, Expires: c.Expires,
	}, true
}

// staticNames are the names of AWS's services.
func (w *World) staticNames() dns.Static {
	api := []netip.Addr{netip.MustParseAddr(APIAddress)}
	out := dns.Static{}
	if w.config.NoPlatform {
		return out
	}
	for _, service := range []string{"ec2", "sts"} {
		out[service+"."+w.config.Spec.Region+".amazonaws.com."] = api
	}
	out["sts.amazonaws.com."] = api
	return out
}

// names are the private DNS names of assigned addresses.
type names struct{ w *World }

// Forward implements dns.Names.
func (n names) Forward(name string) ([]netip.Addr, bool) {
	label, domain, _ := strings.Cut(strings.TrimSuffix(name, "."), ".")
	rest, ok := strings.CutPrefix(label, "ip-")
	if !ok {
		return nil, false
	}
	a, err := netip.ParseAddr(strings.ReplaceAll(rest, "-", "."))
	if err != nil || !a.Is4() || vpc.PrivateDNSName(a, n.w.config.Spec.Region) != label+"."+domain {
		return nil, false
	}
	if n.w.State().Owner(a) == nil {
		return nil, false
	}
	return []netip.Addr{a}, true
}

// Reverse implements dns.Names.
func (n names) Reverse(a netip.Addr) (string, bool) {
	if !a.Is4() || n.w.State().Owner(a) == nil {
		return "", false
	}
	return vpc.PrivateDNSName(a, n.w.config.Spec.Region) + ".", true
}
