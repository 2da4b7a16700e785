package journal

import "testing"

func TestCloseIsIdempotent(t *testing.T) {
	j, _ := open(t, t.TempDir(), Options{})
	for range 2 {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAFailedOpenLeavesNoFileOpen(t *testing.T) {
	for failAt := int64(1); ; failAt++ {
		d := &faultyDisk{}
		d.failAt.Store(failAt)
		j, _, err := Open(t.TempDir(), Options{disk: d})
		if err == nil {
			_ = j.Close()
			if failAt == 1 {
				t.Error("no operation failed")
			}
			return
		}
		if n := d.open.Load(); n != 0 {
			t.Errorf("%d files are open after operation %d failed: %v", n, failAt, err)
		}
	}
}
