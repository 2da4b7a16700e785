//go:build netns

package state_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/journal"
	"github.com/trunkline/trunkline/test/isolate"
)

// release deletes an endpoint; the address is free at once.
func release(s *state.Store, e endpoint.Endpoint) (*journal.Pending, error) {
	return s.Update(func(tx *state.Tx) error {
		tx.Record(tx.Ledger().Return(e.ID, time.Now())...)
		tx.Delete(e.ID)
		return nil
	})
}

// The disk refuses that an endpoint is deleted, and takes that another one gets its address:
// after a restart the address has one holder, the second one.
func TestAChangeThatTheDiskRefusedPrecedesTheNextOne(t *testing.T) {
	isolate.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("small", dir, "tmpfs", 0, "size=256k"); err != nil { // smaller than the journal's reserve
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		s := statetest.Open(t, filepath.Join(dir, "journal"))
		statetest.Observe(t, s)
		first, kept := statetest.Ready(t, s, "first"), statetest.Ready(t, s, "kept")

		theirs := filepath.Join(dir, "of-another-program")
		if err := os.WriteFile(theirs, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		var refused error
		for range 100 { // the last page of the file has space left
			pending, err := s.Update(func(tx *state.Tx) error { tx.Agree(state.Agreement{"link": string(make([]byte, 1000))}); return nil })
			if err != nil {
				t.Fatal(err)
			}
			if refused = pending.Wait(t.Context()); refused != nil {
				break
			}
		}
		pending, err := release(s, first)
		if err == nil {
			err = pending.Wait(t.Context())
		}
		if !errors.Is(refused, journal.ErrDisk) || !errors.Is(err, journal.ErrDisk) {
			t.Fatalf("%v, %v; want the disk to refuse both", refused, err)
		}
		if err := state.CatchUp(t.Context(), s); !errors.Is(err, journal.ErrDisk) {
			t.Errorf("the journal has caught up on a full disk: %v", err)
		}
		if err := os.Remove(theirs); err != nil {
			t.Fatal(err)
		}
		second := statetest.Ready(t, s, "second")
		if !second.Addresses.Overlaps(first.Addresses) {
			t.Fatalf("it has %+v, want the address of %+v", second.Addresses, first.Addresses)
		}
		if err := state.CatchUp(t.Context(), s); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}

		again := statetest.Open(t, filepath.Join(dir, "journal"))
		if left := again.Endpoints(); len(left) != 2 || left[0] != kept && left[1] != kept || left[0] != second && left[1] != second {
			t.Errorf("after a restart: %+v, want %+v and %+v", left, kept, second)
		}
		if view, _ := again.View(time.Now()); view.ENIs[0].Count(ipam.Assigned) != 2 {
			t.Errorf("%d addresses are assigned", view.ENIs[0].Count(ipam.Assigned))
		}
	})
}
