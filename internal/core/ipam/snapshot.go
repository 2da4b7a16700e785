package ipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// View is the ledger at one moment, as a value: what Plan reads, what status and
// the introspection endpoint print.
type View struct {
	ENIs     []ENIView      // the primary first, then by device index and id
	InFlight []cloud.Action // oldest first
	Backoffs []Backoff      // by key
	// Peak is the most addresses in use or cooling at once over IdleAfter, and
	// PeakSince when the watch began. PeakFalls is when Peak will be lower although
	// nothing happens; zero if it will not.
	Peak      int
	PeakSince time.Time
	PeakFalls time.Time
	// Released is when addresses or an interface were last given back; zero if not
	// since the start.
	Released time.Time
	// Observed is when EC2 was last compared with the ledger.
	Observed time.Time
}

// ENIView is an interface and its secondary addresses, ordered.
type ENIView struct {
	ENI
	Addresses []Address
	Prefixes  []Prefix // none yet, see Prefix
}

// Count returns how many addresses are in one of the states.
func (e ENIView) Count(states ...State) int {
	n := 0
	for _, a := range e.Addresses {
		if slices.Contains(states, a.State) {
			n++
		}
	}
	return n
}

// View returns a copy of the ledger in which cool-downs that are over have ended.
func (l *Ledger) View(now time.Time) View {
	l.expire(now)
	v := View{Peak: l.use.max(), PeakSince: l.use.start, PeakFalls: l.use.falls(l.coolest(), l.settings.IdleAfter), Released: l.released, Observed: l.observed}
	for _, id := range sortedKeys(l.enis) {
		e := ENIView{ENI: *l.enis[id]}
		for _, addr := range sortedAddrs(l.byENI[id]) {
			e.Addresses = append(e.Addresses, *l.addresses[addr])
		}
		v.ENIs = append(v.ENIs, e)
	}
	slices.SortFunc(v.ENIs, func(a, b ENIView) int {
		switch {
		case before(&a.ENI, &b.ENI):
			return -1
		case before(&b.ENI, &a.ENI):
			return 1
		}
		return 0
	})
	for _, id := range sortedKeys(l.actions) {
		v.InFlight = append(v.InFlight, l.actions[id])
	}
	slices.SortStableFunc(v.InFlight, func(a, b cloud.Action) int { return a.Began.Compare(b.Began) })
	for _, key := range sortedKeys(l.backoffs) {
		v.Backoffs = append(v.Backoffs, l.backoffs[key])
	}
	return v
}

// Removing returns the view in which the addresses of endpoints that are being removed
// are Quarantined: their links may still exist.
func (v View) Removing(removing func(endpoint.ID) bool) View {
	v.ENIs = slices.Clone(v.ENIs)
	for i, e := range v.ENIs {
		v.ENIs[i].Addresses = slices.Clone(e.Addresses)
		for j, a := range e.Addresses {
			if a.State == Assigned && !a.Holder.Foreign() && removing(a.Holder.Endpoint) {
				v.ENIs[i].Addresses[j].State = Quarantined
			}
		}
	}
	return v
}

// Pending is a pod bound to the node that has no address yet. Pods on the host
// network are not among them.
type Pending struct {
	UID       string
	Namespace string
	Name      string
	Bound     time.Time // when it was bound, or first seen
	Waiting   bool      // its ADD has come and waits
}

// Limits is what the node may hold.
type Limits struct {
	ENIs            int // interfaces of the instance type, the primary included
	AddressesPerENI int // IPv4 slots per interface, its primary address included
	MaxPods         int // of the kubelet; 0 is no cap
}

// Subnet is one a new interface may be made in: in the node's zone, not excluded
// by tag.
type Subnet struct {
	ID   vpc.SubnetID
	CIDR netip.Prefix
	// Free is its count of free addresses, -1 where nobody has asked yet.
	Free int
	// SameRoutes: it shares the route table of the node's own subnet. Pods on
	// other interfaces would leave the VPC by another way.
	SameRoutes bool
}

// Snapshot is everything a plan is made from.
type Snapshot struct {
	View
	Node         cloud.Node // what actions are completed with
	Pending      []Pending
	Limits       Limits
	Subnets      []Subnet
	Groups       []vpc.SecurityGroupID // security groups of new interfaces
	Brake        cloud.Brake
	Reservations []Reservation // must be empty in this version
}

// String prints the snapshot for people: one line per interface, then what is
// under way and what is wanted.
func (s Snapshot) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "limits: %d interfaces x %d addresses, %d pods\n",
		s.Limits.ENIs, s.Limits.AddressesPerENI-1, s.Limits.MaxPods)
	for _, e := range s.ENIs {
		fmt.Fprintf(&b, "%s %s\n", e.ID, e.summary())
	}
	for _, a := range s.InFlight {
		fmt.Fprintf(&b, "in flight: %s, since %s\n", a, a.Began.Format(clock))
	}
	for _, p := range s.Backoffs {
		fmt.Fprintf(&b, "back-off: %s until %s after %d tries: %s\n",
			p.Key, p.Until.Format(clock), p.Tries, cmp.Or(p.Message, string(p.Reason)))
	}
	for _, n := range s.Subnets {
		fmt.Fprintf(&b, "subnet: %s %s, %s free%s\n",
			n.ID, n.CIDR, count(n.Free), suffix(!n.SameRoutes, ", other routes than the node's"))
	}
	waiting := 0
	for _, p := range s.Pending {
		if p.Waiting {
			waiting++
		}
	}
	fmt.Fprintf(&b, "demand: %d pods, %d of them waiting; peak of use %d\n", len(s.Pending), waiting, s.Peak)
	if s.Brake != cloud.BrakeOff {
		fmt.Fprintf(&b, "brake: %s\n", s.Brake)
	}
	return b.String()
}

// clock is how times of day are printed.
const clock = "15:04:05"

func (e ENIView) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s device %d %s", e.Phase, e.Device, e.Subnet)
	if e.Primary {
		b.WriteString(" primary")
	}
	if e.Unmanaged {
		b.WriteString(" unmanaged")
	}
	if e.Type != vpc.TypeInterface {
		b.WriteString(" " + string(e.Type))
	}
	if !e.Missing.IsZero() {
		b.WriteString(" missing at EC2")
	}
	sep := ": "
	for _, st := range []State{Assigned, Quarantined, Cooling, Free, Releasing, Unconfirmed} {
		if n := e.Count(st); n > 0 {
			fmt.Fprintf(&b, "%s%d %s", sep, n, st)
			sep = ", "
		}
	}
	if len(e.Addresses) == 0 {
		b.WriteString(": no addresses")
	}
	return b.String()
}

func count(n int) string {
	if n < 0 {
		return "unknown"
	}
	return fmt.Sprint(n)
}

func suffix(when bool, s string) string {
	if when {
		return s
	}
	return ""
}
