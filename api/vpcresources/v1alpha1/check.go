package v1alpha1

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
)

// What can be wrong with a ledger that was read: one that was edited by hand, or written by another
// version. The API server checks nothing of it.
var (
	// ErrOtherInstance: the ledger is of another instance, which had the same node name.
	ErrOtherInstance = errors.New("the record is of another instance")
	// ErrVLAN: a VLAN outside 1 to 120, or held twice.
	ErrVLAN = errors.New("invalid VLAN")
	// ErrPhase: a phase that this version does not have.
	ErrPhase = errors.New("unknown phase")
	// ErrMode: a mode that this version does not have.
	ErrMode = errors.New("unknown mode")
	// ErrIncomplete: a record lacks what its phase requires.
	ErrIncomplete = errors.New("incomplete record")
	// ErrMalformed: an id, MAC, address, range or number that cannot be read, or the ledger itself.
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
	if l.Unreadable != "" {
		c.add("%s: %w", l.Unreadable, ErrMalformed)
		return c.errs
	}
	c.node(l, instance)
	owners := c.vlans(l.VLANs)
	ids, vlans := map[string]bool{}, map[int32]bool{}
	for i := range l.Branches {
		b := &l.Branches[i]
		c.at = fmt.Sprintf("branches[%d]: ", i)
		if ids[b.ID] {
			c.add("id %q: another record has it: %w", b.ID, ErrHeldTwice)
		}
		ids[b.ID] = true
		switch {
		case b.VLANID == 0:
		case b.VLANID < 1 || b.VLANID > MaxVLAN:
			c.add("vlanID %d: must be from 1 to %d: %w", b.VLANID, MaxVLAN, ErrVLAN)
		case vlans[b.VLANID]:
			c.add("vlanID %d: another record has it: %w", b.VLANID, ErrVLAN)
		case owners[b.VLANID] != b.ID:
			c.add("vlanID %d: the owner in vlans is %q, and not %q: %w", b.VLANID, owners[b.VLANID], b.ID, ErrVLAN)
		}
		vlans[b.VLANID] = true
		c.stage(b)
		c.values(b)
		c.call(b.Call)
	}
	return c.errs
}

type checker struct {
	at   string
	held map[string]int32 // by interface, association, MAC or address; its VLAN, 0 of the trunk
	// free: the addresses of the record may be those of another. EC2 gives an address away with the
	// deletion of its branch, which is recorded after that.
	free bool
	errs []error
}

func (c *checker) add(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("status.trunkline: "+c.at+format, args...))
}

// node checks what is of the instance and its trunk.
func (c *checker) node(l *BranchLedger, instance string) {
	if !instanceID.MatchString(l.InstanceID) {
		c.add("instanceID %q: %w", l.InstanceID, ErrMalformed)
	} else if l.InstanceID != instance {
		c.add("instanceID %s, and the node is %s: %w", l.InstanceID, instance, ErrOtherInstance)
	}
	if l.LastVLAN < 0 || l.LastVLAN > MaxVLAN {
		c.add("lastVLAN %d: must be from 0 to %d: %w", l.LastVLAN, MaxVLAN, ErrVLAN)
	}
	if l.Mode != nil && !l.Mode.Mode.Known() {
		c.add("mode %q: %w", l.Mode.Mode, ErrMode)
	}
	if l.Host != nil && l.Host.Interfaces < 1 {
		c.add("host: interfaces %d: must be positive: %w", l.Host.Interfaces, ErrMalformed)
	}
	if l.Trunk != nil {
		c.trunk(l.Trunk)
	}
}

// vlans returns the owners of VLANs; it leaves those out that cool down.
func (c *checker) vlans(list []VLANRecord) map[int32]string {
	owners, seen := map[int32]string{}, map[int32]bool{}
	for i, v := range list {
		c.at = fmt.Sprintf("vlans[%d]: ", i)
		if v.VLANID < 1 || v.VLANID > MaxVLAN {
			c.add("vlanID %d: must be from 1 to %d: %w", v.VLANID, MaxVLAN, ErrVLAN)
		} else if seen[v.VLANID] {
			c.add("vlanID %d: another record has it: %w", v.VLANID, ErrVLAN)
		}
		seen[v.VLANID] = true
		if v.Until == nil {
			owners[v.VLANID] = v.Owner
		}
	}
	c.at = ""
	return owners
}

func (c *checker) trunk(t *TrunkRecord) {
	c.at = "trunk: "
	defer func() { c.at = "" }()
	switch t.Phase {
	case TrunkCreating, TrunkAttaching, TrunkReady, TrunkDeleting:
	default:
		c.add("phase %q: %w", t.Phase, ErrPhase)
	}
	if t.Phase == TrunkCreating && t.Call == nil {
		c.add("call is missing in the phase %s: %w", t.Phase, ErrIncomplete)
	}
	if t.ENIID == "" && t.Phase != TrunkCreating {
		c.add("eniID is missing in the phase %s: %w", t.Phase, ErrIncomplete)
	}
	if t.DeviceIndex < 0 {
		c.add("deviceIndex %d: must not be negative: %w", t.DeviceIndex, ErrMalformed)
	}
	c.id("eniID", t.ENIID, 0)
	c.mac(t.MAC, 0)
	c.call(t.Call)
}

// call checks what a call without a known outcome must have to be repeated.
func (c *checker) call(r *CallRecord) {
	switch {
	case r == nil:
	case r.ID == "" || r.Kind == "" || r.Tries < 1:
		c.add("call %q of kind %q after %d tries: %w", r.ID, r.Kind, r.Tries, ErrIncomplete)
	case r.Began.IsZero() || r.At.IsZero():
		c.add("call %q: began or at is missing: %w", r.ID, ErrIncomplete)
	}
}

// stage checks what the phase of a branch requires.
func (c *checker) stage(b *BranchRecord) {
	created, associated, bound := true, false, false
	switch b.Phase {
	case BranchCreating:
		created = false
	case BranchTagging, BranchAssociating, BranchCooling, BranchDisassociating, BranchDeleting:
	case BranchIdle:
		associated = true
	case BranchBinding, BranchBound:
		associated, bound = true, true
	default:
		c.add("phase %q: %w", b.Phase, ErrPhase)
		return
	}
	lacks := func(what string, missing bool) {
		if missing {
			c.add("%s is missing in the phase %s: %w", what, b.Phase, ErrIncomplete)
		}
	}
	lacks("id", b.ID == "")
	lacks("call", !created && b.Call == nil)
	lacks("eniID", created && b.ENIID == "")
	lacks("associationID", associated && b.AssociationID == "")
	lacks("vlanID", associated && b.VLANID == 0)
	lacks("pod", bound && b.Pod == nil)
	lacks("pod.uid", b.Pod != nil && b.Pod.UID == "")
	lacks("pod.namespace", b.Pod != nil && b.Pod.Namespace == "")
	lacks("pod.name", b.Pod != nil && b.Pod.Name == "")
	lacks("subnetID", b.SubnetID == "")
	lacks("since", b.Since.IsZero())
	lacks("changed", b.Changed.IsZero())
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
	c.mac(b.MAC, b.VLANID)
	c.free = b.Phase == BranchDeleting
	c.address("ipv4", b.IPv4, b.SubnetCIDR, b.VLANID, netip.Addr.Is4)
	c.address("ipv6", b.IPv6, b.SubnetV6CIDR, b.VLANID, netip.Addr.Is6)
}

func (c *checker) mac(text string, vlan int32) {
	if text == "" {
		return
	}
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		c.add("mac %q: %w", text, ErrMalformed)
		return
	}
	c.hold("mac", mac.String(), vlan)
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

// address checks an address and the range of its subnet. An address outside that is no error of the record: EC2
// gives it where the range of a subnet was replaced, and the annotation of that branch alone cannot be written.
func (c *checker) address(field, text, cidr string, vlan int32, family func(netip.Addr) bool) {
	if cidr != "" {
		p, err := netip.ParsePrefix(cidr)
		if err != nil || !family(p.Addr()) || p != p.Masked() {
			c.add("range %q of %s: %w", cidr, field, ErrMalformed)
			return
		}
	}
	if text == "" {
		return
	}
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil || !family(a) || a.Zone() != "" || a.Is4In6():
		c.add("%s %q: %w", field, text, ErrMalformed)
	case !c.free:
		c.hold(field, a.String(), vlan)
	}
}
