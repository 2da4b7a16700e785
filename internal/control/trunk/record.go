package trunk

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// record is what is recorded of a node: the state of core/trunk, and what goes with it.
type record struct {
	state  core.State
	host   host
	custom *custom          // nil without custom networking
	choice groupmode.Choice // zero where the mode is not chosen for each node
	// names of the pods in the state, which a live GET needs.
	names map[core.PodUID]types.NamespacedName
	// ranges of the subnets in which branches are.
	ranges map[vpc.SubnetID]ranges
}

// host is the primary interface of the node's instance, and what its type has.
type host struct {
	vpc     vpc.ID
	subnet  vpc.SubnetID
	groups  core.Groups
	devices int // device indexes of the default network card; 0: EC2 was not read yet
}

// ranges of a subnet; invalid ones do not exist.
type ranges struct{ v4, v6 netip.Prefix }

func newRecord(instance vpc.InstanceID) record {
	return record{state: core.New(instance), names: map[core.PodUID]types.NamespacedName{}, ranges: map[vpc.SubnetID]ranges{}}
}

// bare reports whether a record has nothing but the mode of the node.
func bare(l *vpcresources.BranchLedger) bool {
	return l.Mode != nil && l.Trunk == nil && len(l.Branches) == 0 && len(l.VLANs) == 0 && len(l.Unowned) == 0 && l.ObservedAt == nil
}

// empty reports whether nothing of the record is left to delete. An attached trunk is deleted by
// EC2, with its instance.
func (r record) empty() bool {
	s := r.state
	return len(s.Branches) == 0 && len(s.Unowned) == 0 && !s.Observed.IsZero() && (s.Trunk.Stage == core.Absent || s.Trunk.Stage == core.Ready)
}

// trunkPhases and branchPhases are the stages of core/trunk by their names on the wire.
func trunkPhases() map[vpcresources.TrunkPhase]core.Stage {
	return map[vpcresources.TrunkPhase]core.Stage{
		vpcresources.TrunkCreating: core.Creating, vpcresources.TrunkAttaching: core.Attaching,
		vpcresources.TrunkReady: core.Ready, vpcresources.TrunkDeleting: core.Deleting,
	}
}

func branchPhases() map[vpcresources.BranchPhase]core.Stage {
	return map[vpcresources.BranchPhase]core.Stage{
		vpcresources.BranchCreating: core.Creating, vpcresources.BranchTagging: core.Tagging, vpcresources.BranchAssociating: core.Associating,
		vpcresources.BranchIdle: core.Idle, vpcresources.BranchBinding: core.Binding, vpcresources.BranchBound: core.Bound,
		vpcresources.BranchCooling: core.Cooling, vpcresources.BranchDisassociating: core.Disassociating, vpcresources.BranchDeleting: core.Deleting,
	}
}

// nameOf is the name of a stage on the wire.
func nameOf[P ~string](names map[P]core.Stage, s core.Stage) P {
	for name, stage := range names {
		if stage == s {
			return name
		}
	}
	return P("unknown: " + string(s)) // the API server refuses it
}

// Write.

// ledger is the record as it is written to the status of the CNINode.
func (r record) ledger() *vpcresources.BranchLedger {
	s := r.state
	l := &vpcresources.BranchLedger{InstanceID: string(s.Instance), Mode: writeChoice(r.choice), LastVLAN: int32(s.LastVLAN), ObservedAt: instant(s.Observed), Trunk: writeTrunk(s.Trunk)}
	if r.host.devices > 0 {
		at := r.ranges[r.host.subnet]
		l.Host = &vpcresources.HostRecord{
			VPCID: string(r.host.vpc), SubnetID: string(r.host.subnet), SubnetCIDR: prefixText(at.v4), SubnetV6CIDR: prefixText(at.v6),
			SecurityGroups: writeGroups(r.host.groups), Interfaces: int32(r.host.devices),
		}
	}
	l.CustomNetworking = r.customRecord()
	for _, n := range slices.Sorted(maps.Keys(s.VLANs)) {
		l.VLANs = append(l.VLANs, vpcresources.VLANRecord{VLANID: int32(n), Owner: string(s.VLANs[n].Owner), Until: instant(s.VLANs[n].Until)})
	}
	for _, id := range slices.Sorted(maps.Keys(s.Branches)) {
		l.Branches = append(l.Branches, r.branch(s.Branches[id]))
	}
	for _, key := range slices.Sorted(maps.Keys(s.Backoffs)) {
		b := s.Backoffs[key]
		l.Backoffs = append(l.Backoffs, vpcresources.BackoffRecord{
			Key: key, Since: micro(b.Since), Until: micro(b.Until), Tries: int32(b.Tries), Reason: string(b.Reason), Message: securitygroup.Cut(b.Message),
		})
	}
	for _, pod := range slices.Sorted(maps.Keys(s.Refused)) {
		l.Refused = append(l.Refused, vpcresources.RefusedRecord{PodUID: string(pod), SecurityGroups: writeGroups(s.Refused[pod].Groups), Message: securitygroup.Cut(s.Refused[pod].Message)})
	}
	for _, eni := range slices.Sorted(maps.Keys(s.Unowned)) {
		u := s.Unowned[eni]
		l.Unowned = append(l.Unowned, vpcresources.UnownedRecord{
			ENIID: string(eni), Type: string(u.Seen.Type), Intent: string(u.Seen.Intent), SubnetID: string(u.Seen.Subnet), MAC: macText(u.Seen.MAC),
			IPv4: addressText(u.Seen.IPv4), IPv6: addressText(u.Seen.IPv6), SecurityGroups: writeGroups(u.Seen.Groups),
			AssociationID: string(u.Seen.Association), VLANID: int32(u.Seen.VLAN), First: micro(u.First), Passes: int32(u.Passes),
		})
	}
	return l
}

func writeTrunk(t core.Trunk) *vpcresources.TrunkRecord {
	if t.Stage == core.Absent && t.Intent == nil {
		return nil
	}
	return &vpcresources.TrunkRecord{
		Phase: nameOf(trunkPhases(), t.Stage), ENIID: string(t.ENI), MAC: macText(t.MAC), DeviceIndex: int32(t.Device), SubnetID: string(t.Subnet),
		SecurityGroups: writeGroups(t.Groups), MissingSince: instant(t.Missing), Call: writeCall(t.Intent),
	}
}

func (r record) branch(b core.Branch) vpcresources.BranchRecord {
	at := r.ranges[b.Subnet]
	out := vpcresources.BranchRecord{
		ID: string(b.ID), VLANID: int32(b.VLAN), Phase: nameOf(branchPhases(), b.Stage), Since: micro(b.Since), Changed: micro(b.Changed), Used: b.Used,
		SecurityGroups: writeGroups(b.Groups), ENIID: string(b.ENI), AssociationID: string(b.Association), MAC: macText(b.MAC),
		IPv4: addressText(b.IPv4), IPv6: addressText(b.IPv6), SubnetID: string(b.Subnet), SubnetCIDR: prefixText(at.v4), SubnetV6CIDR: prefixText(at.v6),
		Call: writeCall(b.Intent),
	}
	if b.Pod != "" {
		name := r.names[b.Pod]
		out.Pod = &vpcresources.PodReference{UID: types.UID(b.Pod), Namespace: name.Namespace, Name: name.Name}
	}
	return out
}

func writeCall(i *core.Intent) *vpcresources.CallRecord {
	if i == nil {
		return nil
	}
	a := i.Action
	return &vpcresources.CallRecord{
		ID: string(a.ID), Kind: string(a.Kind), Began: micro(a.Began), Why: securitygroup.Cut(a.Why), PodUID: string(a.Pod), TrunkENIID: string(a.Trunk), ENIID: string(a.ENI),
		SubnetID: string(a.Subnet), SecurityGroups: writeGroups(a.Groups), VLANID: int32(a.VLAN), AssociationID: string(a.Association), DeviceIndex: int32(a.Device),
		Tries: int32(i.Tries), Unknown: i.Unknown, Lost: i.Lost, At: micro(i.At), Retry: instant(i.Retry),
	}
}

func writeGroups(groups core.Groups) []string {
	var out []string
	for _, g := range groups {
		out = append(out, string(g))
	}
	return out
}

func micro(t time.Time) metav1.MicroTime { return metav1.NewMicroTime(t) }

// instant is a time, nil for none.
func instant(t time.Time) *metav1.MicroTime {
	if t.IsZero() {
		return nil
	}
	return new(micro(t))
}

func macText(m vpc.MAC) string {
	if m == (vpc.MAC{}) {
		return ""
	}
	return m.String()
}

func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

// Read.

// CheckRecord returns all for which the controller refuses the record of a CNINode: it changes nothing of the node until
// that is corrected. nil for a record that it takes, or none.
func CheckRecord(l *vpcresources.BranchLedger) error {
	if l == nil {
		return nil
	}
	_, err := readLedger(l, vpc.InstanceID(l.InstanceID))
	return err
}

// readLedger is the record that a status has for an instance. A status without one is a new record. An
// error names all that is wrong with it: then nothing of the node may be changed.
func readLedger(l *vpcresources.BranchLedger, instance vpc.InstanceID) (record, error) {
	r := newRecord(instance)
	if l == nil {
		return r, nil
	}
	if errs := l.Check(string(instance)); len(errs) > 0 {
		return record{}, errors.Join(errs...)
	}
	p := parser{r: r}
	s := &p.r.state
	s.LastVLAN, s.Observed, p.r.choice = int(l.LastVLAN), when(l.ObservedAt), readChoice(l.Mode)
	if h := l.Host; h != nil {
		p.r.host = host{vpc: vpc.ID(h.VPCID), subnet: vpc.SubnetID(h.SubnetID), groups: readGroups(h.SecurityGroups), devices: int(h.Interfaces)}
		p.ranges(p.r.host.subnet, h.SubnetCIDR, h.SubnetV6CIDR)
	}
	p.r.custom = p.custom(l.CustomNetworking)
	if t := l.Trunk; t != nil {
		s.Trunk = core.Trunk{
			Stage: trunkPhases()[t.Phase], ENI: vpc.ENIID(t.ENIID), MAC: p.mac(t.MAC), Device: int(t.DeviceIndex), Intent: p.call(t.Call, ""),
			Subnet: vpc.SubnetID(t.SubnetID), Groups: readGroups(t.SecurityGroups), Missing: when(t.MissingSince),
		}
	}
	for _, v := range l.VLANs {
		s.VLANs[int(v.VLANID)] = core.VLAN{Owner: core.BranchID(v.Owner), Until: when(v.Until)}
	}
	for i := range l.Branches {
		b := p.branch(&l.Branches[i])
		s.Branches[b.ID] = b
	}
	for _, b := range l.Backoffs {
		s.Backoffs[b.Key] = core.Backoff{Since: b.Since.UTC(), Until: b.Until.UTC(), Tries: int(b.Tries), Reason: core.Reason(b.Reason), Message: b.Message}
	}
	for _, f := range l.Refused {
		s.Refused[core.PodUID(f.PodUID)] = core.Refusal{Groups: readGroups(f.SecurityGroups), Message: f.Message}
	}
	for _, u := range l.Unowned {
		s.Unowned[vpc.ENIID(u.ENIID)] = p.unowned(u)
	}
	return p.r, p.err
}

// entry is a branch as the annotation of its pod names it.
func (r record) entry(b core.Branch) podeni.Entry {
	at := r.ranges[b.Subnet]
	return podeni.Entry{
		ENI: b.ENI, MAC: b.MAC, IPv4: b.IPv4, IPv6: b.IPv6, VLAN: b.VLAN, Subnet4: at.v4, Subnet6: at.v6, Association: string(b.Association),
	}
}

// parser reads values, and keeps the first error.
type parser struct {
	r   record
	err error
}

func (p *parser) note(err error) {
	if p.err == nil && err != nil {
		p.err = fmt.Errorf("status.trunkline: %w", err)
	}
}

func (p *parser) branch(in *vpcresources.BranchRecord) core.Branch {
	b := core.Branch{
		ID: core.BranchID(in.ID), ENI: vpc.ENIID(in.ENIID), MAC: p.mac(in.MAC), IPv4: p.address(in.IPv4), IPv6: p.address(in.IPv6), Subnet: vpc.SubnetID(in.SubnetID),
		VLAN: int(in.VLANID), Association: core.AssociationID(in.AssociationID), Groups: readGroups(in.SecurityGroups), Stage: branchPhases()[in.Phase],
		Used: in.Used, Since: in.Since.UTC(), Changed: in.Changed.UTC(), Intent: p.call(in.Call, core.BranchID(in.ID)),
	}
	p.ranges(b.Subnet, in.SubnetCIDR, in.SubnetV6CIDR)
	if in.Pod != nil {
		b.Pod = core.PodUID(in.Pod.UID)
		p.r.names[b.Pod] = types.NamespacedName{Namespace: in.Pod.Namespace, Name: in.Pod.Name}
	}
	return b
}

func (p *parser) call(in *vpcresources.CallRecord, of core.BranchID) *core.Intent {
	if in == nil {
		return nil
	}
	return &core.Intent{
		Action: core.Action{
			ID: cloud.ActionID(in.ID), Kind: core.Kind(in.Kind), Instance: p.r.state.Instance, Branch: of, Pod: core.PodUID(in.PodUID), Trunk: vpc.ENIID(in.TrunkENIID),
			ENI: vpc.ENIID(in.ENIID), Subnet: vpc.SubnetID(in.SubnetID), Groups: readGroups(in.SecurityGroups), VLAN: int(in.VLANID),
			Association: core.AssociationID(in.AssociationID), Device: int(in.DeviceIndex), Began: in.Began.UTC(), Why: in.Why,
		},
		Tries: int(in.Tries), Unknown: in.Unknown, Lost: in.Lost, At: in.At.UTC(), Retry: when(in.Retry),
	}
}

func (p *parser) unowned(u vpcresources.UnownedRecord) core.Unowned {
	return core.Unowned{
		Seen: core.Seen{
			ENI: vpc.ENIID(u.ENIID), Type: vpc.InterfaceType(u.Type), Intent: cloud.ActionID(u.Intent), Subnet: vpc.SubnetID(u.SubnetID), MAC: p.mac(u.MAC),
			IPv4: p.address(u.IPv4), IPv6: p.address(u.IPv6), Groups: readGroups(u.SecurityGroups), Association: core.AssociationID(u.AssociationID), VLAN: int(u.VLANID),
		},
		First: u.First.UTC(), Passes: int(u.Passes),
	}
}

func (p *parser) ranges(subnet vpc.SubnetID, v4, v6 string) {
	if v4 != "" || v6 != "" {
		p.r.ranges[subnet] = ranges{p.prefix(v4), p.prefix(v6)}
	}
}

func (p *parser) mac(text string) (m vpc.MAC) {
	if text != "" {
		var err error
		m, err = vpc.ParseMAC(text)
		p.note(err)
	}
	return m
}

func (p *parser) address(text string) (a netip.Addr) {
	if text != "" {
		var err error
		a, err = netip.ParseAddr(text)
		p.note(err)
	}
	return a
}

func (p *parser) prefix(text string) (n netip.Prefix) {
	if text != "" {
		var err error
		n, err = netip.ParsePrefix(text)
		p.note(err)
	}
	return n
}

func readGroups(ids []string) core.Groups {
	var out core.Groups
	for _, id := range ids {
		out = append(out, vpc.SecurityGroupID(id))
	}
	return out
}

func when(t *metav1.MicroTime) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC() // JSON reads it in the machine's zone
}
