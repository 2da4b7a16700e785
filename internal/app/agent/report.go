package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/api/introspection"
	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
)

// bookNow is the node's addresses and plan, for people.
func (a *Agent) bookNow() introspection.Ledger {
	now := time.Now()
	view, _ := a.state.View(now)
	a.mu.Lock()
	decision, instance := a.decision, a.facts.identity.Instance
	a.mu.Unlock()
	n := decision.Numbers
	out := introspection.Ledger{
		Node: a.cfg.NodeName, Instance: string(instance), Version: a.deps.Version, At: now,
		Pool: introspection.Pool{
			Assigned: n.Assigned, Cooling: n.Cooling + n.Quarantined, Free: n.Free, Waiting: n.Demand,
			Total: n.Assigned + n.Cooling + n.Quarantined + n.Free, WarmTarget: a.cfg.WarmIPs, Limit: n.Capacity,
			Why: decision.Condition.String(),
		},
	}
	if brake, why := a.ec2.Brake(); brake != "" {
		out.Pool.Brake = fmt.Sprintf("%s (%s)", brake, why)
	}
	for _, action := range append(view.InFlight, decision.Actions...) {
		out.Pool.Steps = append(out.Pool.Steps, introspection.Step{What: action.String(), Why: action.Why})
	}
	for _, e := range view.ENIs {
		out.ENIs = append(out.ENIs, bookENI(e))
	}
	return out
}

func bookENI(e ipam.ENIView) introspection.ENI {
	row := introspection.ENI{
		ID: string(e.ID), Device: e.Device, MAC: e.MAC.String(), Subnet: string(e.Subnet), CIDR: e.SubnetCIDR, Primary: e.PrimaryIP,
		State: string(e.Phase), Table: int(hostnet.ENI{Device: e.Device}.Table()), Addresses: []introspection.Address{},
	}
	switch {
	case e.Unmanaged:
		row.Why = "not Trunkline's: it takes a slot of the instance and is left alone"
	case !e.Missing.IsZero():
		row.Why = "EC2 has not shown it since " + e.Missing.Format(time.RFC3339)
	}
	for _, ad := range e.Addresses {
		entry := introspection.Address{
			Address: ad.Addr, State: string(ad.State), Container: ad.Holder.Key.ContainerID, Since: ad.Since, Until: ad.Until,
		}
		if ad.State == ipam.Assigned || ad.State == ipam.Quarantined {
			entry.Pod = ad.Holder.String()
		}
		switch ad.State {
		case ipam.Quarantined:
			entry.Why = "its pod is going and the link may still be there"
		case ipam.Unconfirmed:
			entry.Why = "EC2 and the agent's record differ; not given out until they agree"
		case ipam.Releasing:
			entry.Why = "on its way back to the subnet"
		case ipam.Free, ipam.Assigned, ipam.Cooling:
		}
		row.Addresses = append(row.Addresses, entry)
	}
	return row
}

// reportOnce writes what the node looks like to the API server.
func (a *Agent) reportOnce(ctx context.Context, _ bool) (time.Time, error) {
	a.mu.Lock()
	serving, decision := a.serving, a.decision
	a.mu.Unlock()
	if !serving {
		return time.Time{}, nil
	}
	reason, message := "TrunklineReady", "pods are wired by Trunkline"
	problems := a.cluster.SetNetworkUnavailable(ctx, false, reason, message)
	status := a.networkStatus(decision)
	var err error
	status.Versions, err = a.versions()
	return time.Time{}, errors.Join(problems, err, a.cluster.WriteNetwork(ctx, status))
}

func (a *Agent) networkStatus(d ipam.Decision) trunkline.NodeNetworkStatus {
	book, identity := a.bookNow(), a.known().identity
	freeze, _ := a.cluster.Freeze()
	s := trunkline.NodeNetworkStatus{
		ObservedAt: metav1.Now(), InstanceID: book.Instance, InstanceType: identity.Type, Zone: identity.Zone,
		Mode: trunkline.ModeSecondaryIP, Why: d.Condition.Message, Brake: freeze,
		LastError: a.lastError(),
		Addresses: trunkline.AddressCounts{
			Total: int32(book.Pool.Total), Assigned: int32(book.Pool.Assigned), Cooling: int32(book.Pool.Cooling), Free: int32(book.Pool.Free),
			WarmTarget: int32(book.Pool.WarmTarget), Waiting: int32(book.Pool.Waiting), Limit: int32(book.Pool.Limit),
			Interfaces: int32(d.Numbers.ENIs), InterfaceLimit: int32(d.Numbers.MaxENIs),
		},
	}
	for _, e := range book.ENIs {
		s.Interfaces = append(s.Interfaces, interfaceOf(e))
	}
	s.Conditions = []metav1.Condition{
		condition(trunkline.ConditionReady, d.Condition.CanAdd, d.Condition),
		condition(trunkline.ConditionSufficientAddresses, d.Numbers.Attainable > 0 || d.Numbers.Demand == 0, d.Condition),
	}
	view, _ := a.state.View(time.Now())
	a.mu.Lock()
	failed := a.sight.failed
	a.mu.Unlock()
	s.Conditions = append(s.Conditions, reachable(failed), driftNow(view.Differences(), a.standingDrift()))
	return s
}

func interfaceOf(e introspection.ENI) trunkline.Interface {
	out := trunkline.Interface{
		ID: e.ID, MAC: e.MAC, SubnetID: e.Subnet, DeviceIndex: int32(e.Device), PrimaryAddress: e.Primary.String(), Why: e.Why,
		State: trunkline.InterfaceReady,
	}
	switch ipam.Phase(e.State) {
	case ipam.Attaching, ipam.SettingUp:
		out.State = trunkline.InterfaceAttaching
	case ipam.Detaching, ipam.Deleting:
		out.State = trunkline.InterfaceReleasing
	case ipam.Ready:
	}
	for _, ad := range e.Addresses {
		switch ipam.State(ad.State) {
		case ipam.Assigned:
			out.Assigned++
		case ipam.Cooling, ipam.Quarantined:
			out.Cooling++
		case ipam.Free:
			out.Free++
		case ipam.Releasing, ipam.Unconfirmed:
			continue
		}
		out.Total++
	}
	return out
}

func condition(kind string, holds bool, c ipam.Condition) metav1.Condition {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: string(c.Reason), Message: c.Message, LastTransitionTime: metav1.Now()}
}
