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
			h.LetADDsFirst(t.Context(), 10*time.Millisecond, time.Second)
			return time.Since(began)
		}
		if d := waited(); d != 0 {
			t.Errorf("waited %s for no ADD", d)
		}
		first, second := h.Adding(), h.Adding()
		time.AfterFunc(20*time.Millisecond, first)
		time.AfterFunc(50*time.Millisecond, second)
		if d := waited(); d != 60*time.Millisecond {
			t.Errorf("waited %s for ADDs of 20 and 50 ms, and a lull of 10", d)
		}
		if d := waited(); d != 0 {
			t.Errorf("waited %s in a lull", d)
		}
		for at := range 5 { // with pauses of 5 ms
			begin, end := time.Duration(10*at)*time.Millisecond, time.Duration(10*at+5)*time.Millisecond
			time.AfterFunc(begin, func() { time.AfterFunc(end-begin, h.Adding()) })
		}
		<-time.After(time.Millisecond)
		if d := waited(); d != 54*time.Millisecond {
			t.Errorf("waited %s for five ADDs that end after 44 ms, and a lull", d)
		}
		first() // once is enough
		long := h.Adding()
		if d := waited(); d != time.Second {
			t.Errorf("waited %s for an ADD without an end, want a second", d)
		}
		if now, begun := h.adds.count(); now != 1 || begun != 8 {
			t.Errorf("%d ADDs on their way of %d, want 1 of 8", now, begun)
		}
		long()
		if d := waited(); d != 10*time.Millisecond {
			t.Errorf("waited %s after the last ADD, want the lull", d)
		}
	})
}
