package policy

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/bpf"
)

// Views answers questions about what is enforced. Its methods may be called from any goroutine.
type Views struct{ c *Controller }

// NewViews returns the views of a controller.
func NewViews(c *Controller) Views { return Views{c} }

// Inspect returns what the node enforces: the policies that it knows, and what the kernel's
// maps hold of its pods.
func (v Views) Inspect() (introspection.Policies, error) {
	v.c.mu.Lock()
	defer v.c.mu.Unlock()
	out := introspection.Policies{Enforced: v.c.on.Load(), Problem: string(v.c.problem), Stale: !v.c.Objects.Synced()}
	if !out.Enforced {
		switch {
		case out.Problem != "":
		case !v.c.Objects.Known():
			out.Problem = "the policies of the cluster are not known yet: the API server has not answered since the agent started"
		case v.c.Objects.Any():
			out.Problem = "the first policies are being put in force"
		}
		return out, nil
	}
	attached, err := v.c.datapath.Attached()
	if err != nil {
		return out, err
	}
	counts, err := v.counts()
	if err != nil {
		return out, err
	}
	pending := map[endpoint.ID]string{}
	for _, p := range v.c.engine.Pending() {
		pending[p.Endpoint] = p.Why
	}
	for id, why := range v.c.faults.cut {
		pending[id] = "its link takes no programs: " + why
	}
	pods := map[policy.Ref][]string{}
	for _, id := range slices.Sorted(maps.Keys(v.c.wired)) {
		place := v.c.wired[id]
		e := introspection.PolicyEndpoint{
			ID: int(id), Pod: refOf(place.endpoint).String(), Addresses: place.endpoint.Addresses.List(), Link: place.endpoint.Link,
			Attached: attached[place.link].Pod, Pending: pending[id],
		}
		set := v.c.datapath.State.InForce(id)
		e.Rules, e.Counts = v.describe(set), counts[set]
		for _, ref := range v.c.engine.Selecting(id) {
			e.Policies = append(e.Policies, ref.String())
			pods[ref] = append(pods[ref], e.Pod)
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	for _, ref := range v.c.engine.Policies() {
		out.Policies = append(out.Policies, introspection.Policy{Name: ref.String(), Pods: pods[ref], Problems: v.c.faults.problems(ref)})
	}
	drops, err := v.c.datapath.Drops()
	if err != nil {
		return out, err
	}
	out.Dropped = map[string]uint64{}
	for reason, packets := range drops {
		if packets > 0 {
			out.Dropped[reason.String()] = packets
		}
	}
	return out, nil
}

// describe is a set of the kernel in words.
func (v Views) describe(set uint32) string {
	if set == bpf.SetNone {
		return "no endpoint: nothing passes\n"
	}
	return v.c.engine.Describe(policy.SetID(set))
}

// counts are the counts of decisions by their set, most connections first.
func (v Views) counts() (map[uint32][]introspection.PolicyCount, error) {
	read, err := v.c.datapath.Counts()
	if err != nil {
		return nil, err
	}
	out := map[uint32][]introspection.PolicyCount{}
	for key, connections := range read {
		e, known := v.c.engine.Explain(policy.SetID(key.Set), policy.Direction(key.Direction), policy.Class(key.Class), policy.PortClass(key.PortClass))
		if !known {
			continue
		}
		out[key.Set] = append(out[key.Set], introspection.PolicyCount{
			Direction: key.Direction.String(), Allowed: key.Verdict == 1, Connections: connections, Peers: e.Peers, Why: e.Decision.String(),
		})
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b introspection.PolicyCount) int {
			return cmp.Or(cmp.Compare(b.Connections, a.Connections), strings.Compare(a.Direction+a.Peers+a.Why, b.Direction+b.Peers+b.Why))
		})
	}
	return out, nil
}

// errNotEnforced answers questions about the kernel while nothing is enforced.
var errNotEnforced = errors.New("this node enforces no network policies: the cluster has none")

// Verdicts asks the loaded programs about a new connection, at each end that is a pod of this
// node, egress first.
func (v Views) Verdicts(f policy.Flow) (list []introspection.Verdict, err error) {
	v.c.mu.Lock()
	defer v.c.mu.Unlock()
	if !v.c.on.Load() {
		return nil, cmp.Or(v.c.problem.refuses(), errNotEnforced)
	}
	const anyPort = 49152 // the first one that clients get
	packet := bpf.OpeningPacket(netip.AddrPortFrom(f.Source, anyPort), netip.AddrPortFrom(f.Destination, f.Port), uint8(f.Protocol))
	for _, end := range []struct {
		address   netip.Addr
		direction bpf.Direction
	}{{f.Source, bpf.Egress}, {f.Destination, bpf.Ingress}} {
		id, found, err := v.c.datapath.Maps.Addresses.Get(bpf.AddressOf(end.address))
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		j, err := v.c.datapath.Judge(bpf.Question{Endpoint: endpoint.ID(id), Direction: end.direction, Packet: packet})
		if err != nil {
			return nil, err
		}
		answer := introspection.Verdict{Pod: v.podAt(end.address), Direction: end.direction.String(), Allowed: j.Allowed}
		answer.Why, _ = v.why(j.Allowed, j.Reason, j.Set, end.direction, j.Class, j.PortClass)
		list = append(list, answer)
	}
	return list, nil
}

// why is what decided, in words, and the decision if a policy did.
func (v Views) why(allowed bool, reason bpf.Reason, set uint32, d bpf.Direction, class, ports uint32) (string, policy.Decision) {
	if !allowed && reason != bpf.ByPolicy {
		return reason.String(), policy.Decision{}
	}
	e, known := v.c.engine.Explain(policy.SetID(set), policy.Direction(d), policy.Class(class), policy.PortClass(ports))
	if !known {
		return "policies that have changed since", policy.Decision{}
	}
	return e.Decision.String(), e.Decision
}

// podAt is the name of the pod that has an address; empty if none has.
func (v Views) podAt(a netip.Addr) string {
	if ref, found := v.c.engine.At(a); found {
		return ref.String()
	}
	return ""
}

// name gives a record of the kernel the names that the engine has now.
func (v Views) name(f bpf.Flow) introspection.Flow {
	out := introspection.Flow{
		Time: timeOf(f.Time), Allowed: f.Allowed, Protocol: policy.Protocol(f.Packet.Protocol).String(),
		Source:      introspection.FlowEnd{Address: f.Source.Addr(), Port: f.Source.Port()},
		Destination: introspection.FlowEnd{Address: f.Destination.Addr(), Port: f.Destination.Port()},
		Type:        f.Packet.Type, Code: f.Packet.Code, Length: int(f.Packet.Length), Lost: f.Lost, Why: f.Reason.String(),
	}
	v.c.mu.Lock()
	defer v.c.mu.Unlock()
	if v.c.engine == nil { // policies ended meanwhile
		return out
	}
	out.Source.Pod, out.Destination.Pod = v.podAt(f.Source.Addr()), v.podAt(f.Destination.Addr())
	if place, wired := v.c.wired[f.Endpoint]; wired {
		out.Pod, out.Direction = refOf(place.endpoint).String(), f.Direction.String()
	}
	var decision policy.Decision
	if out.Why, decision = v.why(f.Allowed, f.Reason, f.Set, f.Direction, f.Class, f.PortClass); decision.Basis == policy.ByRule {
		out.Policy, out.Rule = decision.Policy.String(), decision.Rule+1
	}
	return out
}

// timeOf converts a time of CLOCK_MONOTONIC; the present if that clock cannot be read.
func timeOf(t time.Duration) time.Time {
	now := time.Now()
	monotonic, err := bpf.Monotonic()
	if err != nil {
		return now
	}
	return now.Add(t - monotonic)
}
