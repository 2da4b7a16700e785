package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/journal"
)

// Version 1 of the journal kept a pod's attachment under "pod/CONTAINER/INTERFACE" and
// the ledger under "ipam/", where an address named its owner and had a life cycle of
// its own. An agent of version 1 does not know the keys of version 2: after a roll
// back it rebuilds from the kernel and EC2, and writes keys of version 1 again. So where
// there are keys of version 1, they are the newer ones.
//
// Beside the ledger's row of an action, version 1 kept what was asked of EC2 under
// "ec2/ID".
const (
	keyPodV1    = "pod/"
	keyLedgerV1 = "ipam/"
	keyIntentV1 = "ec2/"
)

// keyAgreedTime kept when the kernel last agreed, before the digests of keyAgreed.
const keyAgreedTime = "kernel/agreed"

// ownerV1 is who an address was given to. The container of a pod that another CNI wired
// was foreignV1.
type ownerV1 struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	PodUID      string `json:"podUID"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
}

const foreignV1 = "(foreign)"

func (o ownerV1) key() endpoint.Key {
	return endpoint.Key{ContainerID: o.ContainerID, IfName: o.IfName}
}

func (o ownerV1) pod() endpoint.Pod {
	if o.Name == o.ContainerID { // stood for a pod that was not known
		return endpoint.Pod{}
	}
	return endpoint.Pod{Namespace: o.Namespace, Name: o.Name, UID: o.PodUID}
}

type podV1 struct {
	Owner   ownerV1    `json:"owner"`
	Addr    netip.Addr `json:"addr"`
	Table   uint32     `json:"table"`
	MTU     int        `json:"mtu"`
	Link    string     `json:"link"`
	Stage   string     `json:"stage"`
	Since   time.Time  `json:"since"`
	Asked   time.Time  `json:"asked"`
	Network string     `json:"network"`
}

type addressV1 struct {
	Addr  netip.Addr `json:"addr"`
	ENI   vpc.ENIID  `json:"eni"`
	State string     `json:"state"`
	Owner ownerV1    `json:"owner"`
	Since time.Time  `json:"since"`
}

// migrate returns the records in the form of this version, and what has to be written
// for that. Records that are in this form already come back as they are.
func migrate(records []journal.Record, linkPrefix string, now time.Time) (converted, changes []journal.Record, err error) {
	converted, changes, err = migrateRows(records, linkPrefix, now)
	if err != nil {
		return nil, nil, err
	}
	converted, joined, err := joinIntents(converted)
	changes = append(changes, joined...)
	for _, r := range records {
		if r.Key == keyAgreedTime {
			changes = append(changes, journal.Forget(r.Key))
		}
	}
	return converted, changes, err
}

// joinIntents completes actions in flight with what version 1 kept of them beside the
// ledger's row, and forgets that.
func joinIntents(records []journal.Record) (joined, changes []journal.Record, err error) {
	intents := map[cloud.ActionID]json.RawMessage{}
	for _, r := range records {
		if id, ok := strings.CutPrefix(r.Key, keyIntentV1); ok {
			intents[cloud.ActionID(id)] = r.Value
			changes = append(changes, journal.Forget(r.Key))
		}
	}
	if len(intents) == 0 {
		return records, nil, nil
	}
	for _, r := range records {
		id, isAction := strings.CutPrefix(r.Key, keyLedger+"action/")
		intent, known := intents[cloud.ActionID(id)]
		switch {
		case strings.HasPrefix(r.Key, keyIntentV1):
			continue
		case isAction && known:
			if r, err = completed(r, intent); err != nil {
				return nil, nil, fmt.Errorf("record %s: %w", r.Key, err)
			}
			changes = append(changes, r)
		}
		joined = append(joined, r)
	}
	return joined, changes, nil
}

// completed is the record of an action with what its intent had beyond it.
func completed(r journal.Record, intent json.RawMessage) (journal.Record, error) {
	var row ipam.Record
	if err := decode(r, &row); err != nil {
		return r, err
	}
	if row.Action == nil {
		return r, errors.New("it has no action")
	}
	action, err := cloud.Migrate(*row.Action, intent)
	if err != nil {
		return r, err
	}
	row.Action = &action
	return ledgerRecord(row), nil
}

// migrateRows converts attachments, and the ledger's rows of addresses.
func migrateRows(records []journal.Record, linkPrefix string, now time.Time) (converted, changes []journal.Record, err error) {
	old := func(r journal.Record) bool {
		return strings.HasPrefix(r.Key, keyPodV1) || strings.HasPrefix(r.Key, keyLedgerV1)
	}
	if !slices.ContainsFunc(records, old) {
		return records, nil, nil
	}
	m := migration{linkPrefix: linkPrefix, now: now}
	for _, r := range records {
		switch {
		case strings.HasPrefix(r.Key, keyPodV1):
			err = m.pod(r)
		case strings.HasPrefix(r.Key, keyLedgerV1):
			err = m.ledger(r)
		case strings.HasPrefix(r.Key, keyLedger), strings.HasPrefix(r.Key, keyEndpoint), r.Key == keyLastID:
		default:
			m.kept = append(m.kept, r)
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("record %s of version 1: %w", r.Key, err)
		}
		changes = append(changes, journal.Forget(r.Key))
	}
	fresh, err := m.finish()
	if err != nil {
		return nil, nil, err
	}
	return append(m.kept, fresh...), append(changes, fresh...), nil
}

type migration struct {
	linkPrefix string
	now        time.Time
	kept       []journal.Record
	endpoints  []endpoint.Endpoint
	rows       []ipam.Record // of the ledger, but for addresses in use
	used       []usedV1      // addresses in use
}

type usedV1 struct {
	row ipam.Record
	old addressV1
}

// pod converts an attachment.
func (m *migration) pod(r journal.Record) error {
	var p podV1
	if err := decode(r, &p); err != nil {
		return err
	}
	stage, ok := map[string]endpoint.Stage{"adding": endpoint.Wiring, "wired": endpoint.Ready, "deleting": endpoint.Removing}[p.Stage]
	if !ok {
		return fmt.Errorf("stage %q", p.Stage)
	}
	m.add(p, stage)
	return nil
}

func (m *migration) add(p podV1, stage endpoint.Stage) endpoint.Endpoint {
	e := endpoint.Adopt(endpoint.ID(len(m.endpoints)+1), p.Owner.key(), p.Owner.pod(), endpoint.Wire{
		Addresses: endpoint.AddressesOf(p.Addr), Attachment: endpoint.Attachment{Kind: endpoint.Secondary, Table: p.Table}, Link: p.Link, MTU: p.MTU,
	}, false, p.Since)
	e.Stage, e.Requested, e.Network = stage, p.Asked, p.Network
	m.endpoints = append(m.endpoints, e)
	return e
}

// ledger converts a row of the ledger. Only those of addresses have changed.
func (m *migration) ledger(r journal.Record) error {
	var row ipam.Record
	if err := decode(r, &row); err != nil {
		return err
	}
	if row.Op != ipam.PutAddress || row.Address == nil {
		m.rows = append(m.rows, row)
		return nil
	}
	var old struct {
		Address addressV1 `json:"address"`
	}
	if err := json.Unmarshal(r.Value, &old); err != nil {
		return err
	}
	if old.Address.State == "assigned" || old.Address.State == "quarantined" {
		m.used = append(m.used, usedV1{row, old.Address})
	} else {
		m.rows = append(m.rows, row)
	}
	return nil
}

// finish joins endpoints and addresses.
func (m *migration) finish() ([]journal.Record, error) {
	for _, u := range m.used {
		a := *u.row.Address
		a.State = ipam.Assigned
		if u.old.Owner.ContainerID == foreignV1 {
			a.Holder = ipam.ForeignHolder(u.old.Owner.pod())
		} else {
			a.Holder = ipam.HolderOf(m.holder(u.old))
		}
		u.row.Address = &a
		m.rows = append(m.rows, u.row)
	}
	if len(m.endpoints) > int(endpoint.MaxID) {
		return nil, fmt.Errorf("%d attachments: more than there are endpoint IDs", len(m.endpoints))
	}
	out := []journal.Record{put(keyLastID, endpoint.ID(len(m.endpoints)))}
	for _, row := range m.rows {
		out = append(out, ledgerRecord(row))
	}
	for _, e := range m.endpoints {
		out = append(out, endpointRecord(e))
	}
	return out, nil
}

// holder is the endpoint that an address in use belongs to. One that no attachment
// describes waits for a link to go that may still exist.
func (m *migration) holder(a addressV1) endpoint.Endpoint {
	for i, e := range m.endpoints {
		if e.Key == a.Owner.key() && e.Addresses.Primary() == a.Addr {
			m.endpoints[i].Attachment.Interface = a.ENI
			return m.endpoints[i]
		}
	}
	e := m.add(podV1{
		Owner: a.Owner, Addr: a.Addr, Table: hostnet.TableMain, Since: a.Since,
		Link: endpoint.LinkName(m.linkPrefix, a.Owner.Namespace, a.Owner.Name),
	}, endpoint.Removing)
	m.endpoints[len(m.endpoints)-1].Attachment.Interface = a.ENI
	return e
}
