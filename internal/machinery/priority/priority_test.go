package priority

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkThatToleratesDelayYieldsForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &Gate{}
		waited := func() time.Duration {
			began := time.Now()
			g.Yield(t.Context(), 10*time.Millisecond, time.Second)
			return time.Since(began)
		}
		if d := waited(); d != 0 {
			t.Errorf("waited %s for no urgent work", d)
		}
		first, second := g.Enter(), g.Enter()
		time.AfterFunc(20*time.Millisecond, first)
		time.AfterFunc(50*time.Millisecond, second)
		if d := waited(); d != 60*time.Millisecond {
			t.Errorf("waited %s for work of 20 and 50 ms, and 10 ms of quiet", d)
		}
		if d := waited(); d != 0 {
			t.Errorf("waited %s although it was quiet", d)
		}
		for at := range 5 { // with pauses of 5 ms
			begin, end := time.Duration(10*at)*time.Millisecond, time.Duration(10*at+5)*time.Millisecond
			time.AfterFunc(begin, func() { time.AfterFunc(end-begin, g.Enter()) })
		}
		<-time.After(time.Millisecond)
		if d := waited(); d != 54*time.Millisecond {
			t.Errorf("waited %s for five pieces of work that end after 44 ms, and 10 ms of quiet", d)
		}
		first() // once is enough
		long := g.Enter()
		if d := waited(); d != time.Second {
			t.Errorf("waited %s for work without an end, want a second", d)
		}
		if n := g.Active(); n != 1 {
			t.Errorf("%d pieces of urgent work in flight, want 1", n)
		}
		long()
		if d := waited(); d != 10*time.Millisecond {
			t.Errorf("waited %s after the last piece of work, want 10 ms of quiet", d)
		}
	})
}
