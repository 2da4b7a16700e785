package state_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/podcidr"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// errRefused is the error of a transaction that the test makes fail after its changes.
var errRefused = errors.New("refused by the test")

// driven is a store that random transactions change, at the test's own time.
type driven struct {
	*state.Store
	dir  string
	now  time.Time
	last int // of containers and actions
}

func (d *driven) open(t *rapid.T) {
	s, err := state.Open(t.Context(), state.Options{
		Dir: d.dir, BootID: "this one", Settings: statetest.Settings(), LinkPrefix: endpoint.DefaultLinkPrefix, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	d.Store = s
}

// TestATransactionThatFailsChangesNothing drives a store by random transactions, of which
// some fail after their changes. At each step the tables have what the ledger has, and
// after a failure both are as before it. At the end a new process restores the same from
// the journal.
func TestATransactionThatFailsChangesNothing(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		d := &driven{dir: filepath.Join(dir, fmt.Sprint(run)), now: time.Now().UTC().Truncate(24 * time.Hour).Add(-24 * time.Hour)}
		d.open(t)
		defer func() { _ = errors.Join(d.Close(), os.RemoveAll(d.dir)) }()
		if _, err := d.Update(d.observe(addresses())); err != nil {
			t.Fatal(err)
		}
		actions := map[string]func(*rapid.T){
			"": d.check,
			"wait": func(t *rapid.T) {
				d.now = d.now.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "seconds")) * time.Second)
			},
		}
		for name, op := range map[string]func(*rapid.T) func(*state.Tx) error{
			"add": d.add, "remove": d.remove, "release": d.release, "return": d.giveBack, "adopt": d.adopt, "claim": d.claim,
			"renew": d.renew, "begin": d.begin, "settle": d.settle, "cool": d.cool,
			"observe": func(t *rapid.T) func(*state.Tx) error {
				return d.observe(slices.DeleteFunc(addresses(), func(netip.Addr) bool { return rapid.IntRange(0, 3).Draw(t, "hidden") == 0 }))
			},
		} {
			actions[name] = func(t *rapid.T) { d.transact(t, op(t)) }
		}
		t.Repeat(actions)
		d.now = d.now.Add(time.Minute) // every cool-down is over
		before := append(d.ledger(), fmt.Sprintf("%+v", d.Endpoints()))
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		d.open(t)
		if after := append(d.ledger(), fmt.Sprintf("%+v", d.Endpoints())); !slices.Equal(after, before) {
			t.Fatalf("the journal has\n%s\nand the earlier process had\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
	})
}

// transact runs a transaction and makes some of them fail after their changes.
func (d *driven) transact(t *rapid.T, op func(*state.Tx) error) {
	refuse := rapid.Bool().Draw(t, "refuse")
	before, next := d.content(), d.nextID(t)
	_, err := d.Update(func(tx *state.Tx) error {
		if err := op(tx); err != nil {
			return err
		}
		if refuse {
			return errRefused
		}
		return nil
	})
	if err == nil {
		return
	}
	same := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
	if diff := cmp.Diff(before, d.content(), same); diff != "" {
		t.Fatalf("a transaction that failed (%v) changed\n%s", err, diff)
	}
	if id := d.nextID(t); id != next {
		t.Fatalf("a transaction that failed (%v) changed the next ID from %d to %d", err, next, id)
	}
}

func (d *driven) nextID(t *rapid.T) (id endpoint.ID) {
	_, err := d.Update(func(tx *state.Tx) (err error) {
		id, err = tx.NextID()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// content is what the ledger and the tables have.
type content struct {
	View      ipam.View
	Leases    []ipam.Lease
	Endpoints []endpoint.Endpoint
	CoolDowns []podcidr.Cooling
	LastGiven netip.Addr
}

func (d *driven) content() (c content) {
	c.View, c.Leases = d.View(d.now)
	c.Endpoints, c.CoolDowns, c.LastGiven = d.Endpoints(), d.CoolDowns(), d.LastGiven()
	// What is not journaled: a restart waits a full window.
	c.View.Peak, c.View.PeakSince, c.View.PeakFalls, c.View.Released, c.View.Observed = 0, time.Time{}, time.Time{}, time.Time{}, time.Time{}
	return c
}

// check compares the tables with the ledger.
func (d *driven) check(t *rapid.T) {
	if have, want := d.tables(t), d.ledger(); !slices.Equal(have, want) {
		t.Fatalf("the tables have\n%s\nand the ledger has\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// ledger lists what the ledger has, sorted.
func (d *driven) ledger() (list []string) {
	view, _ := d.View(d.now)
	for _, e := range view.ENIs {
		list = append(list, fmt.Sprintf("interface %s %s", e.ID, e.Phase))
		for _, a := range e.Addresses {
			holder := ""
			if a.State == ipam.Assigned || a.State == ipam.Quarantined {
				a.State, holder = ipam.Assigned, a.Holder.String()
			}
			list = append(list, fmt.Sprintf("address %s %s %s", a.Addr, a.State, holder))
		}
	}
	for _, a := range view.InFlight {
		list = append(list, fmt.Sprintf("action %s", a.ID))
	}
	slices.Sort(list)
	return list
}

// tables lists what the tables of the ledger have, sorted.
func (d *driven) tables(t *rapid.T) (list []string) {
	for _, row := range d.rows(t, "interfaces") {
		list = append(list, fmt.Sprintf("interface %s %s", row["ID"], row["PHASE"]))
	}
	for _, row := range d.rows(t, "addresses") {
		if row["STATE"] == string(ipam.Cooling) && row["UNTIL"] <= d.now.Format(time.TimeOnly) {
			row["STATE"] = string(ipam.Free) // the end of a cool-down has no record
		}
		list = append(list, fmt.Sprintf("address %s %s %s", row["ADDRESS"], row["STATE"], row["HOLDER"]))
	}
	for _, row := range d.rows(t, "actions") {
		list = append(list, fmt.Sprintf("action %s", row["ID"]))
	}
	slices.Sort(list)
	return list
}

func (d *driven) rows(t *rapid.T, table string) (rows []map[string]string) {
	var out bytes.Buffer
	if err := errors.Join(d.DB.Snapshot().PrintJSON(&out, table), json.Unmarshal(out.Bytes(), &rows)); err != nil {
		t.Fatal(err)
	}
	return rows
}

// addresses are those of eni-1.
func addresses() (list []netip.Addr) {
	for n := range byte(6) {
		list = append(list, netip.AddrFrom4([4]byte{10, 0, 0, 7 + n}))
	}
	return list
}

func (d *driven) observe(list []netip.Addr) func(*state.Tx) error {
	seen := ipam.Observed{Attached: true, Addresses: list, ENI: ipam.ENI{
		ID: "eni-1", Type: vpc.TypeInterface, Primary: true, Subnet: "subnet-1", SubnetCIDR: netip.MustParsePrefix("10.0.0.0/24"),
		PrimaryIP: netip.MustParseAddr("10.0.0.4"),
	}}
	return func(tx *state.Tx) error {
		rows, _ := tx.Ledger().Observe([]ipam.Observed{seen}, d.now)
		tx.Record(rows...)
		return nil
	}
}

func (d *driven) number() string {
	d.last++
	return fmt.Sprint(d.last)
}

// pod is one of three, so that sandboxes of the same pod meet.
func pod(t *rapid.T) endpoint.Pod {
	uid := rapid.SampledFrom([]string{"u1", "u2", "u3"}).Draw(t, "pod")
	return endpoint.Pod{Namespace: "default", Name: uid, UID: uid}
}

func (d *driven) add(t *rapid.T) func(*state.Tx) error {
	name, of := d.number(), pod(t)
	return func(tx *state.Tx) error {
		id, err := tx.NextID()
		if err != nil {
			return err
		}
		e := endpoint.New(id, endpoint.Key{ContainerID: name, IfName: "eth0"}, of, "trunkline", d.now, d.now)
		lease, rows, err := tx.Ledger().Assign(ipam.HolderOf(e), d.now)
		if err != nil {
			return err
		}
		tx.Record(rows...)
		if e, err = e.Attach(endpoint.Wire{Addresses: endpoint.AddressesOf(lease.Addr), Link: "eni" + name, MTU: vpc.MTU}, d.now); err != nil {
			return err
		}
		if e, err = e.Complete(d.now); err != nil {
			return err
		}
		return tx.Put(e)
	}
}

func (d *driven) adopt(t *rapid.T) func(*state.Tx) error {
	name, of, addr := d.number(), pod(t), rapid.SampledFrom(addresses()).Draw(t, "address")
	return func(tx *state.Tx) error {
		id, err := tx.NextID()
		if err != nil {
			return err
		}
		e := endpoint.Adopt(id, endpoint.Key{ContainerID: name, IfName: "eth0"}, of, endpoint.Wire{
			Addresses: endpoint.AddressesOf(addr), Link: "eni" + name, MTU: vpc.MTU,
		}, false, d.now)
		_, rows, err := tx.Ledger().Adopt(ipam.HolderOf(e), addr, d.now)
		if err != nil {
			return err
		}
		tx.Record(rows...)
		return tx.Put(e)
	}
}

// of is a transaction of a random endpoint of a stage.
func (d *driven) of(t *rapid.T, stage endpoint.Stage, f func(*state.Tx, endpoint.Endpoint) error) func(*state.Tx) error {
	list := slices.DeleteFunc(d.Endpoints(), func(e endpoint.Endpoint) bool { return e.Stage != stage })
	if len(list) == 0 {
		return func(*state.Tx) error { return nil }
	}
	e := rapid.SampledFrom(list).Draw(t, "endpoint")
	return func(tx *state.Tx) error { return f(tx, e) }
}

func (d *driven) remove(t *rapid.T) func(*state.Tx) error {
	return d.of(t, endpoint.Ready, func(tx *state.Tx, e endpoint.Endpoint) error {
		tx.Ledger().Unclaim(e.ID)
		e, err := e.Remove(d.now)
		if err != nil {
			return err
		}
		return tx.Put(e)
	})
}

func (d *driven) release(t *rapid.T) func(*state.Tx) error {
	return d.of(t, endpoint.Removing, func(tx *state.Tx, e endpoint.Endpoint) error {
		tx.Record(tx.Ledger().Release(e.ID, d.now)...)
		tx.Delete(e.ID)
		return nil
	})
}

func (d *driven) giveBack(t *rapid.T) func(*state.Tx) error {
	return d.of(t, endpoint.Ready, func(tx *state.Tx, e endpoint.Endpoint) error {
		tx.Record(tx.Ledger().Return(e.ID, d.now)...)
		tx.Delete(e.ID)
		return nil
	})
}

// claim has pods of another CNI, as the API server shows them, have random addresses.
func (d *driven) claim(t *rapid.T) func(*state.Tx) error {
	claims := map[netip.Addr]ipam.Claim{}
	for _, addr := range addresses() {
		if rapid.IntRange(0, 2).Draw(t, "claimed") == 0 {
			claims[addr] = ipam.Claim{Holder: ipam.ForeignHolder(pod(t)), Made: d.now}
		}
	}
	return func(tx *state.Tx) error {
		tx.Record(tx.Ledger().Claim(claims, true, d.now)...)
		return nil
	}
}

func (d *driven) renew(t *rapid.T) func(*state.Tx) error {
	of := pod(t)
	return func(tx *state.Tx) error {
		tx.Record(tx.Ledger().Renewed(of, d.now)...)
		return nil
	}
}

func (d *driven) begin(t *rapid.T) func(*state.Tx) error {
	a := cloud.Action{ID: cloud.ActionID(d.number()), ENI: "eni-1", Kind: cloud.AssignAddresses, Count: 1}
	if rapid.Bool().Draw(t, "unassign") {
		a.Kind, a.Count, a.Addresses = cloud.UnassignAddresses, 0, []netip.Addr{rapid.SampledFrom(addresses()).Draw(t, "address")}
	}
	return func(tx *state.Tx) error {
		rows, err := tx.Ledger().Begin(a, d.now)
		tx.Record(rows...)
		return err
	}
}

func (d *driven) settle(t *rapid.T) func(*state.Tx) error {
	view, _ := d.View(d.now)
	id, failed := cloud.ActionID("none"), rapid.Bool().Draw(t, "failed")
	if len(view.InFlight) > 0 {
		id = view.InFlight[0].ID
	}
	return func(tx *state.Tx) (err error) {
		var rows []ipam.Record
		if failed {
			rows, err = tx.Ledger().Fail(id, cloud.Failure{Reason: cloud.FailOther, Definite: true}, d.now)
		} else {
			rows, err = tx.Ledger().Settle(id, cloud.Outcome{}, d.now)
		}
		tx.Record(rows...)
		return err
	}
}

func (d *driven) cool(t *rapid.T) func(*state.Tx) error {
	addr := rapid.SampledFrom(addresses()).Draw(t, "address")
	return func(tx *state.Tx) error {
		tx.Cool(podcidr.Cool(addr, d.now, time.Minute))
		tx.SetLastGiven(addr)
		return nil
	}
}
