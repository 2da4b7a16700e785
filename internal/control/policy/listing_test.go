package policy

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestObjectsAreCompleteByTheAPIServerOrACopy(t *testing.T) {
	for name, tt := range map[string]struct {
		before, now cluster
		want        bool
	}{
		"listed":                            {cluster{}, cluster{known: true, synced: true}, true},
		"policies and namespaces only":      {cluster{}, cluster{known: true}, false},
		"of a copy":                         {cluster{known: true, copied: true}, cluster{known: true, copied: true}, true},
		"of a copy, and judged on more":     {cluster{copied: true}, cluster{copied: true}, false},
		"of a copy, and the rest is known":  {cluster{copied: true}, cluster{known: true, copied: true}, true},
		"listed once, and now without pods": {cluster{known: true, synced: true, copied: true}, cluster{known: true, copied: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			of := tt.before
			l := newListing(&of)
			l.complete()
			of = tt.now
			if got := l.complete(); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

// What an earlier agent has in force is newer than the copy.
func TestTheCopyIsUsedBesideAnEarlierAgentsPoliciesOnlyWithoutTheAPIServer(t *testing.T) {
	copied := cluster{known: true, copied: true, any: true}
	off := func() bool { return false }
	t.Run("without an earlier agent", func(t *testing.T) {
		if l := newListing(&copied); !l.complete() || !l.next().IsZero() {
			t.Errorf("complete %v, again at %v", l.complete(), l.next())
		}
	})
	t.Run("the API server lists", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			of := copied
			l := newListing(&of)
			l.adopt()
			if l.complete() {
				t.Error("the copy is used at once")
			}
			time.Sleep(time.Second)
			of.synced = true
			if err := l.wait(t.Context(), off); !l.complete() || !l.next().IsZero() || err != nil {
				t.Errorf("once listed: complete %v, again at %v, %v", l.complete(), l.next(), err)
			}
		})
	})
	t.Run("the API server does not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			l := newListing(&copied)
			l.adopt()
			if err := l.wait(t.Context(), off); err != nil || time.Since(began) != listWithin {
				t.Errorf("an ADD waited for %v: %v", time.Since(began), err)
			}
			if !l.complete() || !l.next().Equal(began.Add(listWithin)) {
				t.Errorf("complete %v, again at %v", l.complete(), l.next())
			}
		})
	})
}
