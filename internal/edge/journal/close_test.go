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
