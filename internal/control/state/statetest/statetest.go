// Package statetest makes stores for the tests of controllers: of a node with one
// interface, eni-1, that has the addresses 10.0.0.7 and 10.0.0.8.
package statetest

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Settings are of the ledgers of tests.
func Settings() ipam.Settings { return ipam.DefaultConfig().Settings() }

// Open opens the store of a journal's directory and closes it when the test ends.
func Open(t testing.TB, dir string) *state.Store {
	t.Helper()
	s, err := state.Open(t.Context(), state.Options{
		Dir: dir, BootID: "this one", Settings: Settings(), LinkPrefix: endpoint.DefaultLinkPrefix, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Update runs f as a durable transaction and waits for the disk.
func Update(t testing.TB, s *state.Store, f func(tx *state.Tx) error) {
	t.Helper()
	pending, err := s.Update(func(tx *state.Tx) error { tx.Durable(); return f(tx) })
	if err == nil {
		err = pending.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// First is eni-1 as EC2 shows it.
func First() ipam.Observed {
	return ipam.Observed{
		ENI: ipam.ENI{
			ID: "eni-1", Type: vpc.TypeInterface, Primary: true, MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Subnet: "subnet-1",
			SubnetCIDR: netip.MustParsePrefix("10.0.0.0/24"), PrimaryIP: netip.MustParseAddr("10.0.0.4"),
		},
		Attached: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("10.0.0.8")},
	}
}

// Observe enters eni-1 and its addresses, as EC2 shows them, in the ledger.
func Observe(t testing.TB, s *state.Store) {
	t.Helper()
	Update(t, s, func(tx *state.Tx) error {
		rows, _ := tx.Ledger().Observe([]ipam.Observed{First()}, time.Now())
		tx.Record(rows...)
		return nil
	})
}

// Wiring makes an endpoint of a container of the pod default/NAME that has an address. Its
// ADD is in flight.
func Wiring(t testing.TB, s *state.Store, name, container string) (e endpoint.Endpoint) {
	t.Helper()
	Update(t, s, func(tx *state.Tx) error {
		id, err := tx.NextID()
		if err != nil {
			return err
		}
		key, pod := endpoint.Key{ContainerID: container, IfName: "eth0"}, endpoint.Pod{Namespace: "default", Name: name}
		e = endpoint.New(id, key, pod, "trunkline", time.Now(), time.Now())
		lease, rows, err := tx.Ledger().Assign(ipam.HolderOf(e), time.Now())
		if err != nil {
			return err
		}
		tx.Record(rows...)
		e, err = e.Attach(endpoint.Wire{
			Addresses: endpoint.AddressesOf(lease.Addr), Link: endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", name), MTU: vpc.MTU,
			Attachment: endpoint.Attachment{Kind: endpoint.Secondary, Interface: lease.ENI, Table: hostnet.TableMain},
		}, time.Now())
		if err != nil {
			return err
		}
		return tx.Put(e)
	})
	return e
}

// Ready is Wiring of the container NAME, and the ADD was answered.
func Ready(t testing.TB, s *state.Store, name string) endpoint.Endpoint {
	t.Helper()
	return step(t, s, Wiring(t, s, name, name), endpoint.Endpoint.Complete)
}

// Remove accepts the DEL of an endpoint.
func Remove(t testing.TB, s *state.Store, e endpoint.Endpoint) endpoint.Endpoint {
	t.Helper()
	return step(t, s, e, endpoint.Endpoint.Remove)
}

func step(t testing.TB, s *state.Store, e endpoint.Endpoint, f func(endpoint.Endpoint, time.Time) (endpoint.Endpoint, error)) (after endpoint.Endpoint) {
	t.Helper()
	Update(t, s, func(tx *state.Tx) (err error) {
		if after, err = f(e, time.Now()); err != nil {
			return err
		}
		return tx.Put(after)
	})
	return after
}
