package ipam

import (
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Mode is how pods get addresses from an interface.
type Mode string

// Modes. Only ModeSecondaryIPv4 works in this version; Config.Validate refuses
// the others with ErrUnsupported.
const (
	ModeSecondaryIPv4 Mode = "secondary-ipv4" // single secondary addresses
	ModePrefixIPv4    Mode = "prefix-ipv4"    // delegated /28s
	ModePrefixIPv6    Mode = "prefix-ipv6"    // a delegated /80
)

// Holder is the user of an address: an endpoint, a pod that another CNI wired, or the node.
type Holder struct {
	// Endpoint is 0 for a pod that Trunkline did not wire.
	Endpoint endpoint.ID  `json:"endpoint,omitempty"`
	Key      endpoint.Key `json:"key,omitzero"` // of the endpoint
	Pod      endpoint.Pod `json:"pod,omitzero"` // zero: not known
	// Link is the node's link on which another program configured the address: the node
	// itself has it, and a pod of that address would be unreachable. Empty: it has not.
	Link string `json:"link,omitempty"`
}

// HolderOf is the holder of an endpoint's addresses.
func HolderOf(e endpoint.Endpoint) Holder { return Holder{Endpoint: e.ID, Key: e.Key, Pod: e.Pod} }

// Foreign reports whether Trunkline did not wire the holder.
func (h Holder) Foreign() bool { return h.Endpoint == 0 }

// ForeignPod reports whether the holder is a pod that another CNI wired, and not the node.
func (h Holder) ForeignPod() bool { return h.Foreign() && !h.OnNode() }

// OnNode reports whether the holder is the node itself.
func (h Holder) OnNode() bool { return h.Link != "" }

// String names the holder's pod, or its container where the pod is not known.
func (h Holder) String() string {
	switch {
	case h.OnNode():
		return "the node itself, on " + h.Link
	case h.Pod.Name != "":
		return h.Pod.String()
	case h.Foreign():
		return "a pod of another CNI"
	}
	return "container/" + h.Key.String()
}

// State is the state of an address.
type State string

// States of an address.
const (
	Free        State = "free"        // can be assigned to a pod
	Assigned    State = "assigned"    // a pod holds it
	Quarantined State = "quarantined" // of a View only: assigned to an endpoint that is being removed
	Cooling     State = "cooling"     // unused, until its cool-down ends
	Releasing   State = "releasing"   // fenced: its release is in flight or pending; never assigned
	Unconfirmed State = "unconfirmed" // EC2 and the ledger differ: not assigned until they agree
)

// Phase is the phase of an interface.
type Phase string

// Phases of an interface. Each but Ready names the step that is pending or in flight.
const (
	Attaching Phase = "attaching" // exists at EC2, not attached to the instance
	SettingUp Phase = "settingUp" // attached; its link, routes and rules are not ready
	Ready     Phase = "ready"     // pods can use its addresses
	Detaching Phase = "detaching" // to be detached, all addresses fenced
	Deleting  Phase = "deleting"  // detached, to be deleted
)

// ENI is an interface as the ledger records it.
type ENI struct {
	ID      vpc.ENIID         `json:"id"`
	Type    vpc.InterfaceType `json:"type"`
	Primary bool              `json:"primary,omitempty"`
	// Card is the network card of the instance, and Device the device index on it, -1
	// before attach. Pods get addresses on vpc.DefaultCard only.
	Card       int              `json:"card,omitempty"`
	Device     int              `json:"device"`
	Attachment vpc.AttachmentID `json:"attachment,omitempty"`
	MAC        vpc.MAC          `json:"mac"`
	Subnet     vpc.SubnetID     `json:"subnet"`
	SubnetCIDR netip.Prefix     `json:"subnetCIDR"`
	// PrimaryIP is the interface's own address; it is never assigned to a pod.
	PrimaryIP netip.Addr            `json:"primaryIP"`
	Groups    []vpc.SecurityGroupID `json:"groups,omitempty"`
	// Prefixes are delegated to it. Another CNI's pods use their addresses.
	Prefixes []Prefix `json:"prefixes,omitempty"`
	// Unmanaged interfaces (tag no_manage, or made by another program) take a slot of
	// the instance; they are never changed. WhyUnmanaged says why it is one; a journal of
	// an earlier version has no reason until the next observation.
	Unmanaged    bool   `json:"unmanaged,omitempty"`
	WhyUnmanaged string `json:"whyUnmanaged,omitempty"`

	Phase   Phase     `json:"phase"`
	Created time.Time `json:"created"` // from its createdAt tag, else when the ledger first recorded it
	Since   time.Time `json:"since"`   // when it took this phase
	// Missing is when EC2 was first found not to show it; zero while EC2 shows it.
	Missing time.Time `json:"missing,omitzero"`
}

// managed reports whether Trunkline changes e.
func (e ENI) managed() bool { return !e.Unmanaged && carriesPods(e) }

// pooled reports whether pods may get addresses of e, now or once it is ready.
func (e ENI) pooled() bool {
	if !e.managed() {
		return false
	}
	return e.Phase == Attaching || e.Phase == SettingUp || e.Phase == Ready
}

// moved is e in another phase.
func (e ENI) moved(to Phase, now time.Time) ENI {
	e.Phase, e.Since = to, stamp(now)
	return e
}

// Address is one secondary address of an interface.
type Address struct {
	Addr   netip.Addr `json:"addr"`
	ENI    vpc.ENIID  `json:"eni"`
	State  State      `json:"state"`
	Holder Holder     `json:"holder,omitzero"`
	Since  time.Time  `json:"since"`          // when it took this state
	Until  time.Time  `json:"until,omitzero"` // cooling: when it is free again
	Used   time.Time  `json:"used,omitzero"`  // when a pod last held it; zero: never
	// Missing is, for an address in use, when EC2 was first found not to show it on
	// its interface; zero while EC2 shows it.
	Missing time.Time `json:"missing,omitzero"`
}

// Family is the address family of a.
func (a Address) Family() vpc.Family { return vpc.FamilyOf(a.Addr) }

// assigned is a once h has it.
func (a Address) assigned(h Holder, now time.Time) Address {
	a.State, a.Holder, a.Since, a.Until = Assigned, h, stamp(now), time.Time{}
	return a
}

// cooled is a without its holder and at the start of its cool-down.
func (a Address) cooled(now time.Time, coolDown time.Duration) Address {
	a.State, a.Holder = Cooling, Holder{}
	a.Since, a.Used = stamp(now), stamp(now)
	a.Until = a.Since.Add(coolDown)
	if !a.Missing.IsZero() {
		a.State, a.Until, a.Missing = Unconfirmed, time.Time{}, time.Time{}
	}
	return a
}

// returned is a without its holder, which never used it.
func (a Address) returned(now time.Time) Address {
	a.State, a.Holder, a.Since = Free, Holder{}, stamp(now)
	if !a.Missing.IsZero() {
		a.State, a.Missing = Unconfirmed, time.Time{}
	}
	return a
}

// Lease is an assigned address with the properties of its interface that an ADD needs.
type Lease struct {
	Holder  Holder       `json:"holder"`
	Addr    netip.Addr   `json:"addr"`
	ENI     vpc.ENIID    `json:"eni"`
	Primary bool         `json:"primary,omitempty"` // the instance's primary interface
	Device  int          `json:"device"`            // device index; determines the route table
	MAC     vpc.MAC      `json:"mac"`               // of the interface
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway"` // the subnet's router
	Since   time.Time    `json:"since"`
	Family  vpc.Family   `json:"family"`
}

// Backoff delays the repetition of an action that failed. Its key is the scope of the
// failure: one subnet, one interface, or one kind of action on one object.
type Backoff struct {
	Key     string           `json:"key"`
	Since   time.Time        `json:"since"`
	Until   time.Time        `json:"until"`
	Tries   int              `json:"tries"`
	Reason  cloud.FailReason `json:"reason"`
	Message string           `json:"message"`
}
