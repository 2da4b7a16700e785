package report

import (
	"cmp"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// ledger is the node's addresses and plan, as introspection and `trunkline show` have them.
func (r *Reporter) ledger() introspection.Ledger {
	now := time.Now()
	view, _ := r.State.View(now)
	pool := r.State.Pool()
	n := pool.Decision.Numbers
	out := introspection.Ledger{
		Node: r.cfg.NodeName, Instance: string(r.State.Node().Instance), Version: r.Version, At: now,
		Pool: introspection.Pool{
			Assigned: n.Assigned, Cooling: n.Cooling + n.Quarantined, Free: n.Free, Waiting: n.Demand,
			Total: n.Assigned + n.Cooling + n.Quarantined + n.Free, WarmTarget: r.cfg.WarmIPs, Limit: n.Capacity,
			Why: pool.Decision.Condition.String(),
		},
	}
	out.Facts, out.Outages, out.Warnings = facts(r.State.Node()), r.outages(now), r.warnings()
	if pool.Brake != cloud.BrakeOff {
		out.Pool.Brake = fmt.Sprintf("%s (%s)", pool.Brake, pool.BrakeReason)
	}
	for _, action := range append(view.InFlight, pool.Decision.Actions...) {
		out.Pool.Steps = append(out.Pool.Steps, introspection.Step{What: action.String(), Why: action.Why})
	}
	if r.Backend == config.BackendPodCIDR {
		out.Pool.WarmTarget = 0 // every address is there already
		out.PodCIDR = podCIDR(r.State.Node().PodCIDR, r.State.Endpoints(), r.State.CoolDowns(), now)
		out.WithoutEC2 = withoutEC2(r.BackendWhy, r.cfg.Unused(r.Backend))
		return out // interfaces in the journal are those of an agent with the other backend
	}
	for _, e := range view.ENIs {
		row := interfaceRow(e)
		if row.Why == "" {
			row.Why = view.Denied(e.ID)
		}
		out.ENIs = append(out.ENIs, row)
		// The plan counts addresses that it can give to pods; these are in use beside them.
		inPrefixes := len(ofPrefixes(e))
		out.Pool.Assigned += inPrefixes
		out.Pool.Total += inPrefixes
		out.Pool.Limit += inPrefixes
	}
	return out
}

func interfaceRow(e ipam.ENIView) introspection.ENI {
	row := introspection.ENI{
		ID: string(e.ID), Card: e.Card, Device: e.Device, MAC: e.MAC.String(), Subnet: string(e.Subnet), CIDR: e.SubnetCIDR, Primary: e.PrimaryIP,
		State: string(e.Phase), Addresses: []introspection.Address{}, Foreign: e.Foreign(),
	}
	if e.Card == vpc.DefaultCard {
		row.Table = int(hostnet.ENI{Device: e.Device}.Table())
	}
	for _, p := range e.Prefixes {
		row.Prefixes = append(row.Prefixes, p.CIDR)
	}
	switch {
	case e.Unmanaged:
		row.Why = "not used and not changed: " + cmp.Or(e.WhyUnmanaged, "it is not Trunkline's")
	case !e.Missing.IsZero():
		row.Why = "EC2 has not shown it since " + e.Missing.Format(time.RFC3339)
	default:
		row.Why = e.Kept()
	}
	for _, ad := range e.Addresses {
		entry := introspection.Address{
			Address: ad.Addr, State: string(ad.State), Container: ad.Holder.Key.ContainerID, Since: ad.Since, Until: ad.Until,
		}
		if ad.State == ipam.Assigned || ad.State == ipam.Quarantined {
			entry.Pod = ad.Holder.String()
		}
		entry.Why = addressWhy(e.ENI, ad)
		row.Addresses = append(row.Addresses, entry)
	}
	row.Addresses = append(row.Addresses, ofPrefixes(e)...)
	return row
}

// ofPrefixes are the addresses of an interface's prefixes that pods of another CNI use, or that
// the node itself has. The ledger has no rows for them.
func ofPrefixes(e ipam.ENIView) (out []introspection.Address) {
	for _, c := range e.Claimed {
		if on, ok := e.PrefixOf(c.Addr); ok {
			out = append(out, introspection.Address{
				Address: c.Addr, State: string(ipam.Assigned), Pod: c.Holder.String(),
				Why: fmt.Sprintf("%s; an address of the prefix %s, of which Trunkline gives none to pods", userWhy(c.Holder), on),
			})
		}
	}
	return out
}

// addressWhy says why an address is in its state, and what that means.
func addressWhy(e ipam.ENI, a ipam.Address) string {
	switch a.State {
	case ipam.Free:
		return freeWhy(e, a)
	case ipam.Assigned:
		return assignedWhy(a)
	case ipam.Quarantined:
		return "its pod was deleted and the link may still exist"
	case ipam.Cooling:
		return "released; peers may still know the earlier pod until " + a.Until.Format(time.TimeOnly)
	case ipam.Unconfirmed:
		return "EC2 and the ledger differ; not assigned until they agree"
	case ipam.Releasing:
		return "being unassigned at EC2"
	}
	return ""
}

func freeWhy(e ipam.ENI, a ipam.Address) string {
	switch {
	case e.Unmanaged:
		return "its interface is not Trunkline's: no pod gets it"
	case e.Phase != ipam.Ready:
		return fmt.Sprintf("its interface is %s: no pod gets it before that is done", e.Phase)
	case a.Used.IsZero():
		return "no pod has had it; the next pod gets the address that was unused longest"
	}
	return fmt.Sprintf("last used at %s; the next pod gets the address that was unused longest", a.Used.Format(time.TimeOnly))
}

func assignedWhy(a ipam.Address) string {
	switch {
	case !a.Missing.IsZero():
		return fmt.Sprintf("EC2 has not shown it since %s: the pod's traffic is lost until EC2 has assigned it again", a.Missing.Format(time.RFC3339))
	case a.Holder.OnNode():
		return userWhy(a.Holder) + "; free once it is not on that link any more"
	case a.Holder.Foreign():
		return userWhy(a.Holder) + "; free once the pod's link and its status are gone"
	}
	return "assigned at the pod's ADD"
}

// userWhy says what uses an address that Trunkline has not assigned.
func userWhy(h ipam.Holder) string {
	if h.OnNode() {
		return "another program configured it on " + h.Link + " of the node, so no pod gets it"
	}
	return "in use by a pod that another CNI wired"
}

// awsENIs has the shape of AWS's /v1/enis, keyed by network card.
func (r *Reporter) awsENIs() any {
	type addressInfo struct {
		Address      string
		IPAMKey      map[string]string `json:",omitempty"`
		AssignedTime time.Time         `json:",omitzero"`
	}
	type cidrInfo struct {
		Cidr        string
		IPAddresses map[string]addressInfo
		IsPrefix    bool
	}
	type eni struct {
		ID                 string
		IsPrimary          bool
		IsTrunk            bool
		DeviceNumber       int
		SubnetID           string
		AvailableIPv4Cidrs map[string]cidrInfo
	}
	ledger := r.ledger()
	out := struct {
		TotalIPs    int
		AssignedIPs int
		ENIs        map[string]eni
	}{ledger.Pool.Total, ledger.Pool.Assigned, map[string]eni{}}
	for _, e := range ledger.ENIs {
		row := eni{ID: e.ID, IsPrimary: e.Device == 0 && e.Card == vpc.DefaultCard, DeviceNumber: e.Device, SubnetID: e.Subnet, AvailableIPv4Cidrs: map[string]cidrInfo{}}
		for _, ad := range e.Addresses {
			entry := addressInfo{Address: ad.Address.String()}
			if ad.State == "assigned" {
				entry.IPAMKey = map[string]string{"networkName": config.NetworkName, "containerID": ad.Container}
				entry.AssignedTime = ad.Since
			}
			cidr := ad.Address.String() + "/32"
			row.AvailableIPv4Cidrs[cidr] = cidrInfo{Cidr: cidr, IPAddresses: map[string]addressInfo{entry.Address: entry}}
		}
		for _, p := range e.Prefixes {
			if p.Addr().Is4() {
				row.AvailableIPv4Cidrs[p.String()] = cidrInfo{Cidr: p.String(), IPAddresses: map[string]addressInfo{}, IsPrefix: true}
			}
		}
		out.ENIs[e.ID] = row
	}
	return map[string]any{"0": out}
}

// pods lists the endpoints.
func (r *Reporter) pods() any {
	type row struct {
		Endpoint  endpoint.ID `json:"endpoint"`
		Pod       string      `json:"pod"`
		UID       string      `json:"uid,omitempty"`
		Container string      `json:"container"`
		IfName    string      `json:"ifName"`
		Address   string      `json:"address"`
		Link      string      `json:"link"`
		Table     uint32      `json:"table"`
		Stage     string      `json:"stage"`
		Since     time.Time   `json:"since"`
	}
	rows := []row{}
	for _, e := range r.State.Endpoints() {
		rows = append(rows, row{
			Endpoint: e.ID, Pod: e.Name(), UID: e.Pod.UID, Container: e.Key.ContainerID, IfName: e.Key.IfName,
			Address: e.Addresses.Primary().String(), Link: e.Link, Table: e.Attachment.Table, Stage: string(e.Stage), Since: e.Since,
		})
	}
	return rows
}

func (r *Reporter) settings() any {
	type row struct {
		Name, Value, Origin string
		NotServed           string `json:",omitempty"`
	}
	var rows []row
	for _, r := range r.cfg.Describe() {
		rows = append(rows, row{Name: r.Name, Value: r.Value, Origin: r.Origin})
	}
	for _, n := range r.cfg.NotServed() {
		rows = append(rows, row{n.Env, n.Value, "environment " + n.Env, n.Means})
	}
	return rows
}
