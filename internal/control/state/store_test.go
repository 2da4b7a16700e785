package state_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/journal"
)

var update = flag.Bool("update", false, "rewrite goldens")

// filled is a store of a node with eni-1.
func filled(t *testing.T) (s *state.Store, dir string) {
	t.Helper()
	dir = t.TempDir()
	s = statetest.Open(t, dir)
	statetest.Observe(t, s)
	return s, dir
}

func reopen(t *testing.T, s *state.Store, dir string) *state.Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return statetest.Open(t, dir)
}

func printed(t *testing.T, s *state.Store, table string) string {
	t.Helper()
	var out bytes.Buffer
	if err := s.DB.Snapshot().Print(&out, table); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestNothingIsRestoredOnceTheAgentHasLeftTheNode(t *testing.T) {
	s, dir := filled(t)
	statetest.Ready(t, s, "one")
	for range 2 {
		if err := s.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	again := reopen(t, s, dir)
	if view, leases := again.View(time.Now()); len(view.ENIs)+len(leases)+len(again.Endpoints()) > 0 {
		t.Errorf("restored: %+v, %+v, %+v", view, leases, again.Endpoints())
	}
	// What this agent records is its own again.
	statetest.Observe(t, again)
	if view, _ := reopen(t, again, dir).View(time.Now()); len(view.ENIs) != 1 {
		t.Errorf("after another restart: %+v", view)
	}
}

func TestTheStateIsTheSameAfterARestart(t *testing.T) {
	s, dir := filled(t)
	one := statetest.Ready(t, s, "one")
	two := statetest.Remove(t, s, statetest.Ready(t, s, "two"))
	var before []string
	for _, name := range s.DB.Tables() {
		before = append(before, printed(t, s, name))
	}
	again := reopen(t, s, dir)
	for i, name := range again.DB.Tables() {
		if got := printed(t, again, name); got != before[i] {
			t.Errorf("table %s was\n%s\nand is\n%s", name, before[i], got)
		}
	}
	for _, want := range []endpoint.Endpoint{one, two} {
		if got, ok := again.Endpoint(want.Key); !ok || got != want {
			t.Errorf("endpoint %+v, want %+v", got, want)
		}
	}
	view, leases := again.View(time.Now())
	if len(leases) != 1 || leases[0].Addr != one.Addresses.IPv4 {
		t.Errorf("leases %v", leases)
	}
	if n := view.ENIs[0].Count(ipam.Quarantined); n != 1 {
		t.Errorf("%d addresses in quarantine, want that of the endpoint that is being removed", n)
	}
}

func TestAnIDIsNotReusedSoonAlsoAfterARestart(t *testing.T) {
	s, dir := filled(t)
	one := statetest.Ready(t, s, "one")
	statetest.Update(t, s, func(tx *state.Tx) error {
		tx.Record(tx.Ledger().Return(one.ID, time.Now())...)
		tx.Delete(one.ID)
		return nil
	})
	if two := statetest.Ready(t, reopen(t, s, dir), "two"); two.ID == one.ID {
		t.Errorf("ID %d again: a kernel map may still hold it", two.ID)
	}
}

// The plugin asks for the same container again while the link of the first attempt is
// still being removed.
func TestAnEndpointIsReleasedThoughItsKeyWasWiredAgain(t *testing.T) {
	s, _ := filled(t)
	first := statetest.Remove(t, s, statetest.Ready(t, s, "one"))
	second := statetest.Ready(t, s, "one")
	if first.ID == second.ID || first.Addresses == second.Addresses {
		t.Fatalf("two endpoints share an ID or an address: %+v, %+v", first, second)
	}
	if got, ok := s.Endpoint(first.Key); !ok || got != second {
		t.Errorf("the endpoint of the key is %+v, want the one in use", got)
	}
	statetest.Update(t, s, func(tx *state.Tx) error {
		tx.Record(tx.Ledger().Release(first.ID, time.Now())...)
		tx.Delete(first.ID)
		return nil
	})
	view, leases := s.View(time.Now())
	if len(leases) != 1 || leases[0].Addr != second.Addresses.IPv4 || view.ENIs[0].Count(ipam.Cooling) != 1 {
		t.Errorf("leases %v, addresses %v", leases, view.ENIs[0].Addresses)
	}
}

func TestTwoEndpointsNeverShareAnAddress(t *testing.T) {
	s, _ := filled(t)
	one := statetest.Remove(t, s, statetest.Ready(t, s, "one"))
	_, err := s.Update(func(tx *state.Tx) error {
		thief := endpoint.Adopt(one.ID+1, endpoint.Key{ContainerID: "two", IfName: "eth0"}, endpoint.Pod{}, endpoint.Wire{
			Addresses: one.Addresses, Link: "eni2",
		}, false, time.Now())
		return tx.Put(thief)
	})
	if !errors.Is(err, endpoint.ErrTaken) {
		t.Errorf("%v, want %v", err, endpoint.ErrTaken)
	}
}

// reboot makes the journal of a closed store one of an earlier boot.
func reboot(t *testing.T, dir string) {
	t.Helper()
	j, _, err := journal.Open(dir, journal.Options{BootID: "an earlier one"})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Append(t.Context(), journal.Forget("nothing")), j.Close()); err != nil {
		t.Fatal(err)
	}
}

// The first process after a reboot is killed before it has removed the old endpoints.
func TestEndpointsOfAnEarlierBootAreBeingRemoved(t *testing.T) {
	s, dir := filled(t)
	e := statetest.Ready(t, s, "one")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	reboot(t, dir)
	for n := range 2 {
		s = statetest.Open(t, dir)
		if got, _ := s.Endpoint(e.Key); got.Stage != endpoint.Removing {
			t.Errorf("start %d after the reboot: its endpoint is %q", n+1, got.Stage)
		}
		if view, _ := s.View(time.Now()); view.ENIs[0].Count(ipam.Quarantined) != 1 {
			t.Errorf("start %d after the reboot: addresses %v", n+1, view.ENIs[0].Addresses)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Its ADD was killed: what should hold the pod back may not be in force.
func TestAnEndpointOfAnInterruptedADDIsHeld(t *testing.T) {
	s, dir := filled(t)
	e := statetest.Wiring(t, s, "one", "one")
	if again, _ := reopen(t, s, dir).Endpoint(e.Key); !again.Held() {
		t.Error("its link would be set up at the next start")
	}
}

func TestAJournalThatContradictsItselfIsDropped(t *testing.T) {
	for name, records := range map[string][]journal.Record{
		"an address that is none": {{Key: "endpoint/1", Value: json.RawMessage(`{"id":1,"addresses":{"ipv4":"x"}}`)}},
		"two of one address": {
			{Key: "endpoint/1", Value: json.RawMessage(`{"id":1,"key":{"containerID":"a"},"addresses":{"ipv4":"10.0.0.1"}}`)},
			{Key: "endpoint/2", Value: json.RawMessage(`{"id":2,"key":{"containerID":"b"},"addresses":{"ipv4":"10.0.0.1"}}`)},
		},
		"version 1": {{Key: "pod/c/eth0", Value: json.RawMessage(`{"addr":"not an address"}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j, _, err := journal.Open(dir, journal.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(j.Append(t.Context(), records...), j.Close()); err != nil {
				t.Fatal(err)
			}
			s := statetest.Open(t, dir)
			if n := len(s.Endpoints()); n != 0 {
				t.Errorf("%d endpoints", n)
			}
			_ = s.Close()
			_, left, err := journal.Open(dir, journal.Options{})
			if err != nil || len(left) != 0 {
				t.Errorf("it is still there: %v, %v", left, err)
			}
		})
	}
}

// testdata/v1.log was written by the release before endpoints: two pods that run, one
// with an accepted DEL, one with an interrupted ADD, a pod that another CNI wired.
func TestAJournalOfVersion1IsConverted(t *testing.T) {
	dir := t.TempDir()
	raw, err := os.ReadFile("testdata/v1.log")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "log"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() *state.Store {
		t.Helper()
		s, err := state.Open(context.Background(), state.Options{Dir: dir, BootID: "v1", Settings: statetest.Settings(), LinkPrefix: "eni", Log: discard()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s := open()
	tables := func(s *state.Store) string {
		return printed(t, s, "endpoints") + printed(t, s, "interfaces") + printed(t, s, "addresses")
	}
	if *update {
		if err := os.WriteFile("testdata/v1.golden", []byte(tables(s)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/v1.golden")
	if err != nil {
		t.Fatal(err)
	}
	if got := tables(s); got != string(want) {
		t.Errorf("converted to\n%s", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := tables(open()); got != string(want) {
		t.Errorf("at the second start\n%s", got)
	}
}

// A crash must not keep what a conversion wrote without what the reboot invalidated.
func TestAConversionAfterARebootIsOneWrite(t *testing.T) {
	raw, err := os.ReadFile("testdata/v1.log")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(raw)
	open := func() *state.Store { return statetest.Open(t, dir) } // not of boot v1
	if err := open().Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := len(raw) + 1; at <= len(whole); at++ {
		if whole[at-1] != '\n' {
			continue
		}
		write(whole[:at])
		s := open()
		for _, e := range s.Endpoints() {
			if e.Stage != endpoint.Removing {
				t.Errorf("killed after %d of %d bytes: %s of an earlier boot is %q", at, len(whole), e.Name(), e.Stage)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhatNoVersionReadsIsForgottenAndOtherKeysStay(t *testing.T) {
	dir := t.TempDir()
	j, _, err := journal.Open(dir, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	records := []journal.Record{
		{Key: "kernel/agreed", Value: json.RawMessage(`{"at":"2026-01-02T03:04:05Z"}`)},
		{Key: "of-a-newer-version", Value: json.RawMessage(`1`)},
	}
	if err := errors.Join(j.Append(t.Context(), records...), j.Close()); err != nil {
		t.Fatal(err)
	}
	if err := statetest.Open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	j, left, err := journal.Open(dir, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	has := func(r journal.Record) bool {
		return slices.ContainsFunc(left, func(l journal.Record) bool { return l.Key == r.Key })
	}
	if has(records[0]) || !has(records[1]) {
		t.Errorf("left: %s", left)
	}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
