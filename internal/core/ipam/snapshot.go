package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// View is a copy of the ledger at one time, for Plan, status and the introspection
// endpoint.
type View struct {
	ENIs     []ENIView      // the primary first, then by device index and id
	InFlight []cloud.Action // oldest first
	Backoffs []Backoff      // by key
	// Idle is how long addresses must have been unneeded before they are released.
	Idle time.Duration
	// Peak is the most addresses in use at once over Idle, those that cool down included,
	// PeakSince when its measurement began, and PeakFalls when it falls without another
	// event; zero if it does not.
	Peak      int
	PeakSince time.Time
	PeakFalls time.Time
	// Released is when the last release of addresses or an interface began; zero if none
	// has since the start.
	Released time.Time
	// Observed is when EC2 was last compared with the ledger.
	Observed time.Time
}

// ENIView is an interface and its secondary addresses, ordered.
type ENIView struct {
	ENI
	Addresses []Address
	// Claimed are other addresses of it that pods use.
	Claimed []Claimed
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
	use := l.volatile.use
	v := View{
		Idle: l.settings.idleTime() + l.volatile.idle.extra,
		Peak: use.max(), PeakSince: use.start, PeakFalls: use.falls(l.rows.addresses.nextCoolDownEnd(), l.window()),
		Released: l.volatile.idle.released, Observed: l.volatile.observed,
	}
	claimed := l.volatile.claims.unassigned(&l.rows)
	for _, row := range slices.SortedFunc(maps.Values(l.rows.enis), byOrder) {
		v.ENIs = append(v.ENIs, l.rows.view(*row, claimed[row.ID]))
	}
	for _, id := range slices.Sorted(maps.Keys(l.rows.actions)) {
		v.InFlight = append(v.InFlight, *l.rows.actions[id])
	}
	slices.SortStableFunc(v.InFlight, func(a, b cloud.Action) int { return a.Began.Compare(b.Began) })
	for _, key := range slices.Sorted(maps.Keys(l.rows.backoffs)) {
		v.Backoffs = append(v.Backoffs, *l.rows.backoffs[key])
	}
	return v
}

// view is an interface as it is in a View.
func (s *rows) view(e ENI, claimed []Claimed) ENIView {
	v := ENIView{ENI: e, Claimed: claimed}
	addresses := s.addresses.holding(e.ID).all
	v.Addresses = slices.Grow(v.Addresses, len(addresses))
	for _, addr := range addresses {
		v.Addresses = append(v.Addresses, *s.addresses.rows[addr])
	}
	return v
}

// Removing returns v with the addresses of endpoints that are being removed as Quarantined:
// their links may still exist. It shares with v what does not differ.
func (v View) Removing(removing func(endpoint.ID) bool) View {
	quarantined := func(a Address) bool {
		return a.State == Assigned && !a.Holder.Foreign() && removing(a.Holder.Endpoint)
	}
	v.ENIs = slices.Clone(v.ENIs)
	for i, e := range v.ENIs {
		first := slices.IndexFunc(e.Addresses, quarantined)
		if first < 0 {
			continue
		}
		all := slices.Clone(e.Addresses)
		for j, a := range all[first:] {
			if quarantined(a) {
				all[first+j].State = Quarantined
			}
		}
		v.ENIs[i].Addresses = all
	}
	return v
}

// Pending is an ADD that waits for an address, or a pod bound to the node that has neither
// an address nor such an ADD. Pods on the host network are not among them.
type Pending struct {
	UID       string
	Namespace string
	Name      string
	Bound     time.Time // when the pod was bound or first observed, or since when the ADD waits
	Waiting   bool      // it is an ADD that waits for an address
}

// Limits are the most interfaces, addresses and pods that the node may have.
type Limits struct {
	ENIs            int // interfaces of the default network card, the primary included
	AddressesPerENI int // IPv4 slots per interface, its primary address included
	MaxPods         int // of the kubelet; 0 is no cap
}

// perENI is how many addresses an interface can hold beside its own.
func (l Limits) perENI() int { return l.AddressesPerENI - 1 }

// Subnet is a subnet in which interfaces may be created: in the node's zone and not
// excluded by its tags.
type Subnet struct {
	ID   vpc.SubnetID
	CIDR netip.Prefix
	// Free is its count of free addresses; -1: not known.
	Free int
	// SameRoutes: it is known to have the route table of the node's own subnet. With another
	// one, traffic of its pods may leave the VPC by another route.
	SameRoutes bool
}

// Snapshot is the input of Plan.
type Snapshot struct {
	View
	Node    cloud.Node // completes the actions
	Pending []Pending
	Limits  Limits
	Subnets []Subnet
	// Surveyed is when Subnets were read, or that was last tried; zero: now.
	Surveyed time.Time
	// SurveyAsked is when a plan requested to read them, without an outcome yet; zero: none did.
	SurveyAsked time.Time
	Groups      []vpc.SecurityGroupID // security groups of new interfaces
	Brake       cloud.Brake
}

// String prints the snapshot for users: one line per interface, then the actions in
// flight and the demand.
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
	fmt.Fprintf(&b, "demand: %d pods, %d of them waiting; peak of use %d in %s\n", len(s.Pending), s.waiting(), s.Peak, s.Idle.Round(time.Second))
	if s.Brake != cloud.BrakeOff {
		fmt.Fprintf(&b, "brake: %s\n", s.Brake)
	}
	return b.String()
}

// clock is the format of printed times.
const clock = "15:04:05"

func (e ENIView) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s device %d %s", e.Phase, e.Device, e.Subnet)
	if e.Card != vpc.DefaultCard {
		fmt.Fprintf(&b, " card %d", e.Card)
	}
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
	if why := e.Kept(); why != "" {
		b.WriteString("; " + why)
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

// waiting counts the ADDs that wait for an address.
func (s Snapshot) waiting() (n int) {
	for _, p := range s.Pending {
		if p.Waiting {
			n++
		}
	}
	return n
}
