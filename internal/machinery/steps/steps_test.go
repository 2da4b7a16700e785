package steps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// world is what steps change: a set of things, and what the journal says.
type world struct {
	things  map[string]bool
	journal []string
	failAt  string // the step with a Do that fails, after its effect
	stuck   string // the step with an Undo that fails
}

var errStep = errors.New("no")

func list(names ...string) *List[*world] {
	l := &List[*world]{Journal: func(_ context.Context, w *world, at string) error {
		if w.failAt == "journal "+at {
			return errStep
		}
		w.journal = append(w.journal, at)
		return nil
	}}
	for i, name := range names {
		l.Steps = append(l.Steps, Step[*world]{
			Name: name, Journal: i == 1,
			Do: func(_ context.Context, w *world) error {
				w.things[name] = true
				if w.failAt == name {
					return errStep
				}
				return nil
			},
			Undo: func(ctx context.Context, w *world) error {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if w.stuck == name {
					return errStep
				}
				delete(w.things, name)
				return nil
			},
		})
	}
	return l
}

func TestTheJournalIsWrittenBeforeTheStepThatAsksForItAndAtTheEnd(t *testing.T) {
	w := &world{things: map[string]bool{}}
	l := list("attach", "wire", "up")
	var seen []string
	l.Observe = func(step string, undo bool, _ time.Duration, err error) {
		seen = append(seen, fmt.Sprint(step, " ", undo, " ", err, " after ", len(w.journal)))
	}
	if err := l.Run(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(w.journal, []string{"wire", ""}) {
		t.Errorf("journal %q", w.journal)
	}
	if want := []string{"attach false <nil> after 0", "wire false <nil> after 1", "up false <nil> after 1"}; !slices.Equal(seen, want) {
		t.Errorf("observed %q", seen)
	}
}

func TestWhateverFailsNothingIsLeftBehind(t *testing.T) {
	for _, failAt := range []string{"attach", "wire", "up", "journal wire", "journal "} {
		w := &world{things: map[string]bool{}, failAt: failAt}
		err := list("attach", "wire", "up").Run(t.Context(), w)
		var f *Failure
		if !errors.As(err, &f) || !errors.Is(err, errStep) || f.Undo != nil {
			t.Errorf("%s: %v", failAt, err)
		}
		if len(w.things) != 0 {
			t.Errorf("%s: %v is left", failAt, w.things)
		}
	}
}

func TestTheEndOfTheContextTakesEverythingBack(t *testing.T) {
	w := &world{things: map[string]bool{}}
	ctx, cancel := context.WithCancelCause(t.Context())
	l := list("attach", "wire", "up")
	do := l.Steps[1].Do
	gone := errors.New("plugin gone")
	l.Steps[1].Do = func(ctx context.Context, w *world) error { defer cancel(gone); return do(ctx, w) }
	err := l.Run(ctx, w)
	if !errors.Is(err, gone) || len(w.things) != 0 {
		t.Errorf("%v; %v is left", err, w.things)
	}
}

func TestAStepThatCannotBeTakenBackDoesNotKeepTheOthers(t *testing.T) {
	w := &world{things: map[string]bool{}, failAt: "up", stuck: "wire"}
	err := list("attach", "wire", "up").Run(t.Context(), w)
	var f *Failure
	if !errors.As(err, &f) || f.Undo == nil {
		t.Fatalf("%v", err)
	}
	if len(w.things) != 1 || !w.things["wire"] {
		t.Errorf("%v is left, want what is stuck", w.things)
	}
}
