package link

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWhatCanWaitLetsADDsGoFirstButNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Host{}
		waited := func() time.Duration {
			began := time.Now()
			h.LetADDsFirst(t.Context(), time.Second)
			return time.Since(began)
		}
		if d := waited(); d != 0 {
			t.Errorf("waited %s for no ADD", d)
		}
		first, second := h.Adding(), h.Adding()
		time.AfterFunc(20*time.Millisecond, first)
		time.AfterFunc(50*time.Millisecond, second)
		if d := waited(); d != 50*time.Millisecond {
			t.Errorf("waited %s for ADDs of 20 and 50 ms", d)
		}
		first() // once is enough
		long := h.Adding()
		if d := waited(); d != time.Second {
			t.Errorf("waited %s for an ADD without an end, want a second", d)
		}
		if now, begun := h.adds.count(); now != 1 || begun != 3 {
			t.Errorf("%d ADDs on their way of %d, want 1 of 3", now, begun)
		}
		long()
		if d := waited(); d != 0 {
			t.Errorf("waited %s after the last ADD", d)
		}
	})
}
