package hostnet

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Object is a Link, Address, Route, Rule, Neighbour or Sysctl.
type Object interface {
	fmt.Stringer
	// Key identifies the object among those of its kind, ours or foreign.
	Key() string
}

// Key identifies a link by its name.
func (l Link) Key() string { return "link " + l.Name }

// Key identifies an address by link and address, without the prefix length.
func (a Address) Key() string { return "address " + a.Link + " " + a.Prefix.Addr().String() }

// Key identifies a route as the kernel does: table, destination, metric.
func (r Route) Key() string {
	return fmt.Sprintf("route %d %s %d", r.Table, r.To, r.Metric)
}

// Key identifies a rule by all its fields except the protocol, which marks its owner.
func (r Rule) Key() string {
	r.Protocol = 0
	return r.String()
}

// Key identifies a neighbour by its link and address.
func (n Neighbour) Key() string { return "neighbour " + n.Link + " " + n.Address.String() }

// Key identifies a setting by its name.
func (s Sysctl) Key() string { return "sysctl " + s.Name }

// Verb is what an Op does.
type Verb uint8

// Verbs.
const (
	Add    Verb = iota // the object is missing
	Change             // it exists and is ours, with other contents
	Delete             // it exists, is ours, and is not desired
	// Report does nothing: Apply cannot repair the difference. A pod's link is
	// gone, or a foreign object is in the place of ours.
	Report
)

func (v Verb) String() string { return [...]string{"add", "change", "delete", "report"}[v] }

// Op is one step from the actual to the desired state.
type Op struct {
	Verb   Verb
	Object Object
	Why    string // the difference that was found, for messages
}

func (o Op) String() string { return o.Verb.String() + " " + o.Difference() }

// Difference describes what the step repairs: the object, and how it differs.
func (o Op) Difference() string { return fmt.Sprintf("%s: %s", o.Object, o.Why) }

// Diff returns the steps that make have equal want. Additions come before deletions:
// an object is added after those it depends on, and deleted before them. Only objects
// of ours are changed or deleted. An equal foreign object satisfies a desired one; a
// different one in its place is reported and left unchanged.
//
// A desired route to one address by a link is for a pod. The kernel's local route of such an
// address is deleted, because it precedes ours: another program has configured the address on a
// link of the node. The address may stay there, so the two do not take turns.
//
// Once the steps are applied, Diff returns nothing but the same reports.
func Diff(want, have State) []Op {
	d := differ{links: map[string]Link{}, ours: map[string]bool{}, blocked: map[string]bool{}}
	d.diffSysctls(want.Sysctls, have.Sysctls)
	d.diffLinks(want.Links, have.Links)
	d.diffAddresses(want, have.Addresses)
	d.diffNeighbours(want.Neighbours, have.Neighbours)
	d.diffRoutes(want, have.Routes)
	d.diffLocal(want.Routes, have.Local)
	d.diffRules(want, have.Rules)
	slices.Reverse(d.deletes)
	return slices.Concat(d.adds, d.deletes, d.reports)
}

type differ struct {
	adds, deletes, reports []Op
	links                  map[string]Link // actual, by name
	ours                   map[string]bool // links that are ours, or become so
	blocked                map[string]bool // desired links that are not usable
}

func (d *differ) add(v Verb, o Object, why string, args ...any) {
	d.adds = append(d.adds, Op{v, o, fmt.Sprintf(why, args...)})
}

func (d *differ) delete(o Object, why string) { d.deletes = append(d.deletes, Op{Delete, o, why}) }

func (d *differ) report(o Object, why string, args ...any) {
	d.reports = append(d.reports, Op{Report, o, fmt.Sprintf(why, args...)})
}

func (d *differ) diffSysctls(want, have []Sysctl) {
	found := index(have)
	for _, w := range want {
		h, there := found[w.Key()]
		switch {
		case !there && w.Optional:
		case !there:
			d.report(w, "the kernel has no such setting (%s)", w.Why)
		case !w.accepts(h.Value):
			d.add(Change, w, "is %s: %s", h.Value, w.Why)
		}
	}
}

func (s Sysctl) accepts(value string) bool {
	if !s.AtLeast {
		return s.Value == value
	}
	least, err1 := strconv.ParseInt(s.Value, 10, 64)
	got, err2 := strconv.ParseInt(value, 10, 64)
	return err1 == nil && err2 == nil && got >= least
}

func (d *differ) diffLinks(want, have []Link) {
	for _, h := range have {
		d.links[h.Name] = h
		d.ours[h.Name] = h.Ours()
	}
	wanted := index(want)
	for _, w := range want {
		d.diffLink(w)
	}
	for _, h := range have {
		if _, keep := wanted[h.Key()]; keep || h.Dying() || !h.Ours() {
			continue
		}
		// An ENI's device is never deleted; detaching the ENI removes it.
		if _, pod := ParseAlias(h.Alias); pod || h.Group == LinkGroupPod {
			d.delete(h, "belongs to no pod")
		}
	}
}

func (d *differ) diffLink(w Link) {
	h, there := d.links[w.Name]
	switch {
	case !there && w.Pending:
		d.blocked[w.Name] = true
	case !there:
		d.block(w, "is gone")
	case h.Dying():
		d.block(w, "waits to be deleted")
	case w.MAC != (vpc.MAC{}) && w.MAC != h.MAC:
		d.block(w, "has address %s: another link has its name", h.MAC)
	default:
		d.ours[w.Name] = h.Ours() || w.Alias != ""
		if why := w.difference(h); why != "" {
			d.add(Change, w, "%s", why)
		}
	}
}

// block reports a desired link that is not usable, and skips the objects that need it.
func (d *differ) block(w Link, why string, args ...any) {
	d.blocked[w.Name] = true
	d.report(w, why, args...)
}

// difference describes how the actual link h differs from l; empty if it does not.
func (l Link) difference(h Link) string {
	switch {
	case l.MTU != 0 && l.MTU != h.MTU:
		return fmt.Sprintf("mtu is %d", h.MTU)
	case l.Admin != AdminAny && l.Admin != h.Admin:
		return "is " + h.Admin.String()
	case l.Group != 0 && l.Group != h.Group:
		return fmt.Sprintf("group is %d", h.Group)
	case l.Alias != "" && l.Alias != h.Alias:
		return fmt.Sprintf("alias is %q", h.Alias)
	}
	return ""
}

func (d *differ) diffAddresses(desired State, have []Address) {
	want := desired.Addresses
	found, wanted, left := index(have), index(want), index(desired.Leave)
	for _, w := range want {
		if d.blocked[w.Link] {
			continue
		}
		h, there := found[w.Key()]
		switch {
		case !there:
			d.add(Add, w, "is missing")
		case h.Prefix == w.Prefix:
		case d.ours[w.Link]:
			d.add(Change, w, "is %s", h.Prefix)
		default:
			d.report(w, "is %s on a link that is not ours", h.Prefix)
		}
	}
	for _, h := range have {
		if _, leave := left[h.Key()]; leave {
			continue
		}
		if _, keep := wanted[h.Key()]; keep || !d.prunes(h.Link) || h.Prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		d.delete(h, "is not an address of the node")
	}
}

// prunes reports whether addresses and neighbours on a link may be deleted: not if another
// link has the desired one's name.
func (d *differ) prunes(link string) bool {
	return d.ours[link] && !d.blocked[link] && !d.links[link].Dying()
}

func (d *differ) diffNeighbours(want, have []Neighbour) {
	found, wanted := index(have), index(want)
	for _, w := range want {
		if d.blocked[w.Link] {
			continue
		}
		if h, there := found[w.Key()]; !there {
			d.add(Add, w, "is missing")
		} else if h.MAC != w.MAC {
			d.add(Change, w, "has address %s", h.MAC)
		}
	}
	for _, h := range have {
		if _, keep := wanted[h.Key()]; !keep && d.prunes(h.Link) {
			d.delete(h, "belongs to no pod")
		}
	}
}

func (d *differ) diffRoutes(want State, have []Route) {
	found := map[string][]Route{}
	for _, h := range have {
		found[h.Key()] = append(found[h.Key()], h)
	}
	wanted := map[string]bool{}
	for _, w := range gatewaysLast(want.Routes) {
		if d.blocked[w.Link] || wanted[w.Key()] {
			continue
		}
		wanted[w.Key()] = true
		d.diffRoute(w, found[w.Key()])
	}
	for _, h := range have {
		if h.Ours() && !wanted[h.Key()] {
			d.delete(h, "is ours and not desired")
		}
	}
	for _, a := range want.Absent {
		for _, h := range have { // with any metric
			if h.Table == a.Table && h.To == a.To && h.Link == a.Link && h.Protocol == a.Protocol && !d.blocked[a.Link] {
				d.delete(h, "takes the subnet away from the primary ENI")
			}
		}
	}
}

// diffLocal deletes the local routes of pods' addresses.
func (d *differ) diffLocal(want, local []Route) {
	for _, w := range want {
		for _, h := range local {
			if w.toPod() && h.To == w.To {
				d.delete(h, "is for the address of a pod, which the node itself would answer for")
			}
		}
	}
}

// toPod reports whether a desired route is for a pod.
func (r Route) toPod() bool { return r.Table == TableMain && r.To.IsSingleIP() && !r.Via.IsValid() }

// diffRoute compares a desired route with the actual ones of its key.
func (d *differ) diffRoute(w Route, found []Route) {
	var mine, foreign []Route
	for _, h := range found {
		if h.Ours() {
			mine = append(mine, h)
		} else {
			foreign = append(foreign, h)
		}
	}
	right := slices.IndexFunc(mine, w.sameNextHop)
	switch {
	case right >= 0:
		mine = slices.Delete(mine, right, right+1)
	case len(foreign) > 0:
		if !slices.ContainsFunc(foreign, w.sameNextHop) {
			d.report(w, "conflicts with %s, which is not ours", foreign[0])
		}
	case len(mine) > 0:
		d.add(Change, w, "is %s", mine[0])
		mine = mine[1:]
	default:
		d.add(Add, w, "is missing")
	}
	for _, h := range mine {
		d.delete(h, "differs from the desired route")
	}
}

// sameNextHop reports whether both routes send packets to the same next hop.
func (r Route) sameNextHop(o Route) bool {
	return r.Via == o.Via && r.Link == o.Link && r.Scope == o.Scope
}

// gatewaysLast puts routes on a link before those via a gateway, which need them.
func gatewaysLast(routes []Route) []Route {
	out := slices.Clone(routes)
	slices.SortStableFunc(out, func(a, b Route) int {
		switch {
		case a.Via.IsValid() == b.Via.IsValid():
			return 0
		case a.Via.IsValid():
			return 1
		default:
			return -1
		}
	})
	return out
}

// diffRules deletes a rule that was moved only once the rules that take its place were observed: a
// request to add them that fails leaves the node with the former one.
func (d *differ) diffRules(desired State, have []Rule) {
	want := desired.Rules
	found, wanted := index(have), index(want)
	complete := true
	for _, w := range want {
		if _, there := found[w.Key()]; !there {
			d.add(Add, w, "is missing")
			found[w.Key()] = w
			complete = false
		}
	}
	for _, m := range desired.Moved {
		if h, there := found[m.Key()]; there && complete {
			d.delete(h, "precedes the rules of pods on branches")
		}
	}
	for _, h := range have {
		if _, keep := wanted[h.Key()]; keep || !h.Ours() {
			continue
		}
		if _, kept := found[LocalRule(h.Family).Key()]; !kept && h.leadsToLocal() {
			continue // the node would lose the table of its own addresses
		}
		d.delete(h, "belongs to no pod or ENI")
	}
}

func index[T Object](list []T) map[string]T {
	m := make(map[string]T, len(list))
	for _, o := range list {
		m[o.Key()] = o
	}
	return m
}
