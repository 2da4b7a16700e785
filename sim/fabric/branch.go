package fabric

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// A branch has a link of its own in the fabric, so that routes, groups and source checks
// treat it as they treat every port. Its peer is in the fabric too: the tagged end, where
// frames to the branch are tagged and sent out of the trunk, and to which the trunk sends the
// frames of the branch's VLAN.

// trunks makes the links of branches and attaches the programs that tag their frames.
type trunks struct {
	link      *netlink.Handle
	namespace string // the fabric's
	changes   *int   // the fabric's counter
	// programs are the indexes of the links that have one after the last Apply; nil before it.
	programs map[int]bool
}

// ErrNoTrunk is the cause when the trunk of a branch is not among the ports, or has no link.
var ErrNoTrunk = errors.New("its trunk is not connected")

// taggedEnd is the name of a branch's tagged end.
func taggedEnd(name string) string {
	const longest = 15
	rest := strings.TrimPrefix(name, "eni-")
	return tagPrefix + rest[max(0, len(rest)-(longest-len(tagPrefix))):]
}

// tagPrefix begins the names of tagged ends.
const tagPrefix = "tag-"

// deletable are the links without the tagged ends of those among them: the kernel deletes a
// tagged end with its link.
func deletable(links map[string]netlink.Link) []netlink.Link {
	ends := map[string]bool{}
	for name := range links {
		ends[taggedEnd(name)] = true
	}
	var out []netlink.Link
	for name, l := range links {
		if !ends[name] {
			out = append(out, l)
		}
	}
	return out
}

// branches are the links of the plan's branches.
func (p *plan) branches() map[string]linkPlan {
	out := map[string]linkPlan{}
	for name, l := range p.links {
		if l.trunk != "" {
			out[name] = l
		}
	}
	return out
}

// plug makes the links of the plan's branches, after those of trunks, and removes them
// from have. It returns the names of new links. Errors of single ports are *PortError.
func (t *trunks) plug(p *plan, have map[string]netlink.Link, failed map[string]bool) (made []string, err error) {
	var errs []error
	for name, l := range p.branches() {
		if failed[l.trunk] {
			errs = append(errs, &PortError{Port: l.port.ID, Err: fmt.Errorf("branch of %s: %w", l.port.Key.ENI, ErrNoTrunk)})
			continue
		}
		fresh, err := t.connect(l, have[name], have[taggedEnd(name)])
		if err != nil {
			errs = append(errs, &PortError{Port: l.port.ID, Err: err})
		}
		if fresh {
			made = append(made, name)
		}
		delete(have, name)
		delete(have, taggedEnd(name))
	}
	return made, errors.Join(append(errs, t.tag(p))...)
}

// connect makes a branch's link, down. It reports whether the link is new.
func (t *trunks) connect(l linkPlan, end, tagged netlink.Link) (fresh bool, err error) {
	if isPair(end, tagged, l.alias()) {
		return false, nil
	}
	for _, old := range []netlink.Link{end, tagged} {
		if old == nil {
			continue
		}
		*t.changes++
		if err := ignoreGone(t.link.LinkDel(old)); err != nil {
			return false, fmt.Errorf("delete misplaced link %s: %w", old.Attrs().Name, err)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group = l.name, vpc.MTU, linkGroup
	attrs.HardwareAddr = routerMAC().HardwareAddr()
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerMTU = taggedEnd(l.name), vpc.MTU
	*t.changes++
	if err := t.link.LinkAdd(pair); err != nil {
		return false, fmt.Errorf("make link %s to %s: %w", l.name, pair.PeerName, err)
	}
	return true, t.mark(l, pair.PeerName)
}

// isPair reports whether two links are the ends of one pair and were made for a branch.
func isPair(end, tagged netlink.Link, alias string) bool {
	if end == nil || tagged == nil {
		return false
	}
	a, b := end.Attrs(), tagged.Attrs()
	return a.ParentIndex == b.Index && b.ParentIndex == a.Index && a.NetNsID < 0 && a.Alias == alias &&
		a.MTU == vpc.MTU && b.MTU == vpc.MTU && a.Group == linkGroup && b.Group == linkGroup
}

// mark marks both ends as ours, the tagged end last: without its group the pair is made again.
// That end sends nothing of its own.
func (t *trunks) mark(l linkPlan, tagged string) error {
	var last netlink.Link
	for _, name := range []string{l.name, tagged} {
		made, err := t.link.LinkByName(name)
		if err == nil {
			err = t.link.LinkSetAlias(made, l.alias())
		}
		if err != nil {
			return fmt.Errorf("mark link %s: %w", name, err)
		}
		last = made
	}
	if err := writeSysctls(t.namespace, []sysctl{{"net/ipv6/conf/" + tagged + "/disable_ipv6", "1"}}); err != nil {
		return err
	}
	if err := t.link.LinkSetGroup(last, linkGroup); err != nil {
		return fmt.Errorf("mark link %s: %w", tagged, err)
	}
	return nil
}

// tag attaches the programs of trunks and branches, and sets the branches' links up
// after that. Links that have no branches any more lose theirs.
func (t *trunks) tag(p *plan) error {
	links, err := ourLinks(t.link)
	if err != nil {
		return err
	}
	want, vlans, port := map[int]classifier{}, map[int]map[uint16]int{}, map[int]vpc.ENIID{}
	for name, l := range p.branches() {
		trunk, end, tagged := links[l.trunk], links[name], links[taggedEnd(name)]
		if trunk == nil || end == nil || tagged == nil {
			continue // it has an error of its own
		}
		from, to := trunk.Attrs().Index, tagged.Attrs().Index
		if vlans[from] == nil {
			vlans[from] = map[uint16]int{}
		}
		vlans[from][l.port.Key.VLAN] = to
		want[to] = tagger(l.port.Key.VLAN, from)
		port[from], port[to] = p.links[l.trunk].port.ID, l.port.ID
	}
	for trunk, links := range vlans {
		want[trunk] = untagger(links)
	}
	errs := []error{t.detach(links, want)}
	for index, c := range want {
		if err := t.attach(index, c); err != nil {
			errs = append(errs, &PortError{Port: port[index], Err: err})
		}
	}
	for name, l := range p.branches() {
		if err := t.raise(links, name, l.port.Down); err != nil {
			errs = append(errs, &PortError{Port: l.port.ID, Err: err})
		}
	}
	return errors.Join(errs...)
}

// raise sets both ends of a branch's link up, or its own end down.
func (t *trunks) raise(links map[string]netlink.Link, name string, down bool) error {
	for end, down := range map[string]bool{name: down, taggedEnd(name): false} {
		l := links[end]
		if l == nil {
			continue
		}
		set := t.link.LinkSetUp
		if down {
			set = t.link.LinkSetDown
		}
		if up := l.Attrs().RawFlags&unix.IFF_UP != 0; up == !down {
			continue
		}
		*t.changes++
		if err := set(l); err != nil {
			return fmt.Errorf("set %s up or down: %w", end, err)
		}
	}
	return nil
}

// clsact is the qdisc of a link to which programs are attached.
func clsact(index int) *netlink.GenericQdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

// prepare adds clsact to a new link that is down, because it may become a trunk: while the
// qdisc is added to a link that is up, the kernel takes the link out of service for some
// milliseconds (dev_deactivate, called by qdisc_graft in net/sched/sch_api.c). Without
// programs it does nothing. A kernel without clsact has no branches, and attach reports that.
func (t *trunks) prepare(l netlink.Link) error {
	err := t.link.QdiscAdd(clsact(l.Attrs().Index))
	if err == nil || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return fmt.Errorf("add clsact to %s: %w", l.Attrs().Name, err)
}

// ingress is the place of our program at a link's ingress.
func ingress(index int) netlink.FilterAttrs {
	return netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL}
}

// attached are the names of the programs at a link's ingress.
func (t *trunks) attached(index int) (names []string, err error) {
	have, err := dump(func() ([]netlink.Filter, error) { return t.link.FilterList(byIndex(index), netlink.HANDLE_MIN_INGRESS) })
	if err != nil {
		return nil, fmt.Errorf("list filters of link %d: %w", index, err)
	}
	for _, one := range have {
		if b, ok := one.(*netlink.BpfFilter); ok && b.DirectAction {
			names = append(names, b.Name)
		}
	}
	return names, nil
}

// attach makes the program at a link's ingress equal to c.
func (t *trunks) attach(index int, c classifier) error {
	err := t.link.QdiscAdd(clsact(index))
	switch {
	case err == nil:
		*t.changes++
	case !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("add clsact: %w", err)
	}
	have, err := t.attached(index)
	if err != nil || slices.Contains(have, c.name) {
		return err
	}
	program, err := c.load()
	if err != nil {
		return fmt.Errorf("load program %q: %w", c.name, err)
	}
	defer program.Close() //nolint:errcheck // the filter keeps it
	*t.changes++
	if err := t.link.FilterReplace(&netlink.BpfFilter{FilterAttrs: ingress(index), Fd: program.FD(), Name: c.name, DirectAction: true}); err != nil {
		return fmt.Errorf("attach program %q: %w", c.name, err)
	}
	return nil
}

// detach removes the programs of our links that are to have none: trunks without branches. The
// first time it looks at all links, of which an earlier process may have left some with one.
func (t *trunks) detach(links map[string]netlink.Link, want map[int]classifier) error {
	first, had := t.programs == nil, t.programs
	t.programs = map[int]bool{}
	for index := range want {
		t.programs[index] = true
	}
	var errs []error
	for _, l := range links {
		index := l.Attrs().Index
		if t.programs[index] || !first && !had[index] {
			continue
		}
		have, err := t.attached(index)
		if len(have) > 0 {
			*t.changes++
			err = t.link.FilterDel(&netlink.BpfFilter{FilterAttrs: ingress(index)})
		}
		if err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) { // without clsact there is no program
			errs = append(errs, fmt.Errorf("remove the program of %s: %w", l.Attrs().Name, err))
			t.programs[index] = true
		}
	}
	return errors.Join(errs...)
}

// clsacts are the frames that programs dropped, by the index of the link.
func (t *trunks) clsacts() (map[int]uint64, error) {
	qdiscs, err := dump(func() ([]netlink.Qdisc, error) { return t.link.QdiscList(nil) })
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	out := map[int]uint64{}
	for _, q := range qdiscs {
		if q.Type() != "clsact" {
			continue
		}
		dropped := uint64(0)
		if s := q.Attrs().Statistics; s != nil && s.Queue != nil {
			dropped = uint64(s.Queue.Drops)
		}
		out[q.Attrs().LinkIndex] = dropped
	}
	return out, nil
}

// count adds the frames of unknown VLANs to the drops of the trunks.
func (t *trunks) count(drops map[vpc.ENIID]Drops, device map[vpc.ENIID]string) error {
	links, err := ourLinks(t.link)
	if err != nil {
		return err
	}
	counted, err := t.clsacts()
	if err != nil {
		return err
	}
	for id, d := range drops {
		if l := links[device[id]]; l != nil {
			d.UnknownVLAN = counted[l.Attrs().Index]
			drops[id] = d
		}
	}
	return nil
}
