package v1alpha1

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
)

// What can be wrong with a ledger that was read: one that was edited by hand, or written by another
// version. The API server refuses most of it, but not where another definition is installed.
var (
	// ErrOtherInstance: the ledger is of another instance, which had the same node name.
	ErrOtherInstance = errors.New("the record is of another instance")
	// ErrVLAN: a VLAN outside 1 to 120, or held twice.
	ErrVLAN = errors.New("invalid VLAN")
	// ErrPhase: a phase that this version does not have.
	ErrPhase = errors.New("unknown phase")
	// ErrIncomplete: a record lacks what its phase requires.
	ErrIncomplete = errors.New("incomplete record")
	// ErrMalformed: an id, MAC, address or range that cannot be read.
	ErrMalformed = errors.New("malformed value")
	// ErrHeldTwice: two records have the same interface, association, MAC or address.
	ErrHeldTwice = errors.New("held by two records")
)

// MaxVLAN is the highest VLAN that a branch is given: AWS's controller has 1 to 120, and the
// route table of a branch has the number VLAN + 100. Source: pkg/provider/branch/trunk of AWS's
// controller, MaxAllocatableVlanIds.
const MaxVLAN = 120

var (
	instanceID = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)
	eniID      = regexp.MustCompile(`^eni-([0-9a-f]{8}|[0-9a-f]{17})$`)
	groupID    = regexp.MustCompile(`^sg-([0-9a-f]{8}|[0-9a-f]{17})$`)
)

// Check returns what is wrong with the ledger for the node's instance. Each error wraps one of
// this package's and names the field. A nil ledger has nothing recorded and no error.
func (l *BranchLedger) Check(instance string) []error {
	if l == nil {
		return nil
	}
	c := checker{held: map[string]int32{}}
	if !instanceID.MatchString(l.InstanceID) {
		c.add("instanceID %q: %w", l.InstanceID, ErrMalformed)
	} else if l.InstanceID != instance {
		c.add("instanceID %s, and the node is %s: %w", l.InstanceID, instance, ErrOtherInstance)
	}
	if l.LastVLAN < 0 || l.LastVLAN > MaxVLAN {
		c.add("lastVLAN %d: must be from 0 to %d: %w", l.LastVLAN, MaxVLAN, ErrVLAN)
	}
	if l.Trunk != nil {
		c.trunk(l.Trunk)
	}
	vlans := map[int32]bool{}
	for i := range l.Branches {
		b := &l.Branches[i]
		c.at = fmt.Sprintf("branches[%d]: ", i)
		if b.VLANID < 1 || b.VLANID > MaxVLAN {
			c.add("vlanID %d: must be from 1 to %d: %w", b.VLANID, MaxVLAN, ErrVLAN)
		} else if vlans[b.VLANID] {
			c.add("vlanID %d: another record has it: %w", b.VLANID, ErrVLAN)
		}
		vlans[b.VLANID] = true
		c.stage(b)
		c.values(b)
	}
	return c.errs
}

type checker struct {
	at   string
	held map[string]int32 // by interface, association, MAC or address; its VLAN, 0 of the trunk
	errs []error
}

func (c *checker) add(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("status.trunkline: "+c.at+format, args...))
}

func (c *checker) trunk(t *TrunkRecord) {
	c.at = "trunk: "
	defer func() { c.at = "" }()
	switch t.Phase {
	case TrunkCreating, TrunkAttaching, TrunkReady:
	default:
		c.add("phase %q: %w", t.Phase, ErrPhase)
	}
	if t.ClientToken == "" {
		c.add("clientToken is missing: %w", ErrIncomplete)
	}
	if t.ENIID == "" && t.Phase != TrunkCreating {
		c.add("eniID is missing in the phase %s: %w", t.Phase, ErrIncomplete)
	}
	c.id("eniID", t.ENIID, 0)
}

// stage checks what the phase of a branch requires.
func (c *checker) stage(b *BranchRecord) {
	created, associated := true, false
	switch b.Phase {
	case BranchCreating:
		created = false
	case BranchAssociating, BranchDisassociating, BranchDeleting:
	case BranchBound, BranchQuarantined, BranchCooling:
		associated = true
	default:
		c.add("phase %q: %w", b.Phase, ErrPhase)
		return
	}
	lacks := func(what string, missing bool) {
		if missing {
			c.add("%s is missing in the phase %s: %w", what, b.Phase, ErrIncomplete)
		}
	}
	lacks("clientToken", b.ClientToken == "")
	lacks("securityGroups", len(b.SecurityGroups) == 0)
	lacks("eniID", created && b.ENIID == "")
	lacks("associationID", associated && b.AssociationID == "")
	lacks("pod", b.Phase == BranchBound && b.Pod == nil)
	lacks("pod.uid", b.Pod != nil && b.Pod.UID == "")
	if b.Phase == BranchQuarantined && b.Pod != nil {
		c.add("a quarantined branch has the pod %s/%s: %w", b.Pod.Namespace, b.Pod.Name, ErrIncomplete)
	}
}

// values checks the form of a branch's values, and that no other record has them.
func (c *checker) values(b *BranchRecord) {
	c.id("eniID", b.ENIID, b.VLANID)
	c.hold("associationID", b.AssociationID, b.VLANID)
	for _, g := range b.SecurityGroups {
		if !groupID.MatchString(g) {
			c.add("security group %q: %w", g, ErrMalformed)
		}
	}
	if b.MAC != "" {
		mac, err := net.ParseMAC(b.MAC)
		if err != nil || len(mac) != 6 {
			c.add("mac %q: %w", b.MAC, ErrMalformed)
		} else {
			c.hold("mac", mac.String(), b.VLANID)
		}
	}
	c.address("ipv4", b.IPv4, b.SubnetCIDR, b.VLANID, netip.Addr.Is4)
	c.address("ipv6", b.IPv6, b.SubnetV6CIDR, b.VLANID, netip.Addr.Is6)
}

func (c *checker) id(field, id string, vlan int32) {
	if id != "" && !eniID.MatchString(id) {
		c.add("%s %q: %w", field, id, ErrMalformed)
		return
	}
	c.hold(field, id, vlan)
}

func (c *checker) hold(field, value string, vlan int32) {
	if value == "" {
		return
	}
	key := field + " " + value
	if other, ok := c.held[key]; ok {
		holder := fmt.Sprintf("the branch with VLAN %d", other)
		if other == 0 {
			holder = "the trunk"
		}
		c.add("%s %s: %s has it too: %w", field, value, holder, ErrHeldTwice)
		return
	}
	c.held[key] = vlan
}

func (c *checker) address(field, text, cidr string, vlan int32, family func(netip.Addr) bool) {
	var subnet netip.Prefix
	if cidr != "" {
		p, err := netip.ParsePrefix(cidr)
		if err != nil || !family(p.Addr()) || p != p.Masked() {
			c.add("range %q of %s: %w", cidr, field, ErrMalformed)
			return
		}
		subnet = p
	}
	if text == "" {
		return
	}
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil || !family(a) || a.Zone() != "" || a.Is4In6():
		c.add("%s %q: %w", field, text, ErrMalformed)
	case subnet.IsValid() && !subnet.Contains(a):
		c.add("%s %s is outside its subnet %s: %w", field, a, subnet, ErrMalformed)
	default:
		c.hold(field, a.String(), vlan)
	}
}
