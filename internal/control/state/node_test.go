package state_test

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
)

func openIn(t *testing.T, dir, boot string) *state.Store {
	t.Helper()
	s, err := state.Open(t.Context(), state.Options{
		Dir: dir, BootID: boot, Settings: statetest.Settings(), LinkPrefix: endpoint.DefaultLinkPrefix, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// A record of an earlier boot stays one, however many processes of this boot have opened
// the journal.
func TestTheNodeIsRecordedWithItsBoot(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir, "first")
	if s.Recorded.Instance != "" || s.RecordedNow() {
		t.Errorf("an empty journal has %+v", s.Recorded)
	}
	at := time.Now()
	statetest.Update(t, s, func(tx *state.Tx) error {
		return tx.PutNode(state.Node{Instance: "i-1"}.With(at, state.FactIdentity))
	})
	for _, boot := range []string{"first", "second", "second"} {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openIn(t, dir, boot)
		statetest.Observe(t, s) // the journal has records of this boot
		if got := s.Recorded; got.Instance != "i-1" || !got.Read[state.FactIdentity].Equal(at) || got.Complete() || s.RecordedNow() != (boot == "first") {
			t.Errorf("boot %s: %+v, of this boot: %v", boot, got, s.RecordedNow())
		}
		if n := s.Node(); n.Instance != "" {
			t.Errorf("boot %s: the table has %+v before the backend has taken it over", boot, n)
		}
	}
}

func TestAStoreThatIsSetAsideIsEmptyAtTheNextStart(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir, "first")
	statetest.Observe(t, s)
	path, err := s.SetAside()
	if err != nil || path == "" {
		t.Fatal(path, err)
	}
	for range 2 { // until a record is written
		next := openIn(t, dir, "first")
		view, _ := next.View(time.Now())
		if next.Found.Damage == nil || next.Found.SetAside != path || len(view.ENIs) > 0 {
			t.Errorf("found %+v, interfaces %v", next.Found, view.ENIs)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASourceSaysSinceWhenItAnswersOrFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := state.Source{Name: state.EC2, Since: began}
		if why := s.Problem(time.Now()); why != "" {
			t.Errorf("a call may be in flight: %q", why)
		}
		time.Sleep(time.Minute)
		if s.Problem(time.Now()) == "" {
			t.Error("no call has ended for a minute, and that is not reported")
		}
		s = s.After(nil, time.Now())
		answered := time.Now()
		time.Sleep(time.Minute)
		s = s.After(nil, time.Now())
		if s.Problem(time.Now()) != "" || !s.Since.Equal(answered) {
			t.Errorf("answers: %+v", s)
		}
		s = s.After(errors.New("timeout"), time.Now())
		failed := time.Now()
		time.Sleep(time.Minute)
		s = s.After(errors.New("refused"), time.Now())
		if s.Problem(time.Now()) != "refused" || !s.Since.Equal(failed) {
			t.Errorf("fails: %+v", s)
		}
	})
}
