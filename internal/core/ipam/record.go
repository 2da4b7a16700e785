package ipam

import (
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Op is what a record does to the ledger.
type Op string

// Operations. Each carries the whole new row or the key of a row that is dropped, so a
// record can be applied twice.
const (
	PutENI      Op = "eni"
	DropENI     Op = "eni-gone"
	PutAddress  Op = "address"
	DropAddress Op = "address-gone"
	PutAction   Op = "action"
	DropAction  Op = "action-gone"
	PutBackoff  Op = "backoff"
	DropBackoff Op = "backoff-gone"
	PutGone     Op = "gone" // what we released; stale describes may still show it
	DropGone    Op = "gone-forgotten"
)

// Record is one change of the ledger, for the journal. Op determines the one other field
// that is set. The ledger keeps the row: it must not be changed once applied.
type Record struct {
	Op      Op             `json:"op"`
	ENI     *ENI           `json:"eni,omitempty"`
	Address *Address       `json:"address,omitempty"`
	Action  *cloud.Action  `json:"action,omitempty"`
	Backoff *Backoff       `json:"backoff,omitempty"`
	Gone    *Gone          `json:"gone,omitempty"`
	ENIID   vpc.ENIID      `json:"eniID,omitempty"`
	Addr    netip.Addr     `json:"addr,omitzero"`
	ID      cloud.ActionID `json:"id,omitempty"`
	Scope   string         `json:"scope,omitempty"` // key of a Backoff
}

// Key is the key of r's row in a keyed journal: a later record with the same key
// replaces an earlier one, and replaying the last record of each key, in the order of
// the keys, rebuilds the ledger.
func (r Record) Key() string {
	switch r.Op {
	case PutENI:
		return "eni/" + string(r.ENI.ID)
	case DropENI:
		return "eni/" + string(r.ENIID)
	case PutAddress:
		return "ip/" + r.Address.Addr.String() // sorts after "eni/": an address needs its interface
	case DropAddress:
		return "ip/" + r.Addr.String()
	case PutAction:
		return "action/" + string(r.Action.ID)
	case DropAction:
		return "action/" + string(r.ID)
	case PutBackoff:
		return "backoff/" + r.Backoff.Key
	case DropBackoff:
		return "backoff/" + r.Scope
	case PutGone, DropGone:
		return "gone/" + r.Gone.key()
	}
	return "unknown/" + string(r.Op)
}

// Drops reports whether r removes its row, and with it the key from a keyed journal.
func (r Record) Drops() bool {
	return r.Op == DropENI || r.Op == DropAddress || r.Op == DropAction || r.Op == DropBackoff || r.Op == DropGone
}

// drop is the record that drops the row of r.
func (r Record) drop() Record {
	switch r.Op {
	case PutENI:
		return Record{Op: DropENI, ENIID: r.ENI.ID}
	case PutAddress:
		return Record{Op: DropAddress, Addr: r.Address.Addr}
	case PutAction:
		return Record{Op: DropAction, ID: r.Action.ID}
	case PutBackoff:
		return Record{Op: DropBackoff, Scope: r.Backoff.Key}
	case PutGone:
		return Record{Op: DropGone, Gone: r.Gone}
	case DropENI, DropAddress, DropAction, DropBackoff, DropGone:
	}
	return r
}

// Gone is an address released to its subnet, or an interface deleted, and when.
type Gone struct {
	Addr netip.Addr `json:"addr,omitzero"`
	ENI  vpc.ENIID  `json:"eni,omitempty"`
	At   time.Time  `json:"at"`
}

func (g Gone) key() string {
	if g.ENI != "" {
		return string(g.ENI)
	}
	return g.Addr.String()
}

func putAddress(a Address) Record { return Record{Op: PutAddress, Address: &a} }
func putENI(e ENI) Record         { return Record{Op: PutENI, ENI: &e} }

// whole reports whether r has a known operation and the row or the key it needs.
func (r Record) whole() bool {
	switch r.Op {
	case PutENI:
		return r.ENI != nil && r.ENI.ID != ""
	case DropENI:
		return r.ENIID != ""
	case PutAddress:
		return r.Address != nil && r.Address.Addr.IsValid()
	case DropAddress:
		return r.Addr.IsValid()
	case PutAction:
		return r.Action != nil && r.Action.ID != ""
	case DropAction:
		return r.ID != ""
	case PutBackoff:
		return r.Backoff != nil && r.Backoff.Key != ""
	case DropBackoff:
		return r.Scope != ""
	case PutGone, DropGone:
		return r.Gone != nil && r.Gone.Addr.IsValid() != (r.Gone.ENI != "")
	}
	return false
}
