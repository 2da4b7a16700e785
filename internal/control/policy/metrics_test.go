package policy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

func histogram(t *testing.T, h prometheus.Histogram) (count uint64, sum float64) {
	t.Helper()
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
}

func TestEnforcementIsMeasuredFromReceiptAndFromTheWriteInTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(prometheus.NewRegistry())
		mustBe := func(what string, received uint64, receivedSum float64, written uint64, writtenSum float64) {
			t.Helper()
			if count, sum := histogram(t, m.enforcement); count != received || sum != receivedSum {
				t.Errorf("%s: %d from receipt of %g s, want %d of %g s", what, count, sum, received, receivedSum)
			}
			if count, sum := histogram(t, m.fromAPI); count != written || sum != writtenSum {
				t.Errorf("%s: %d from the API's time of %g s, want %d of %g s", what, count, sum, written, writtenSum)
			}
		}
		m.inForce()
		mustBe("nothing changed", 0, 0, 0, 0)
		m.taken(time.Now().Add(-time.Second), time.Time{})
		m.inForce()
		mustBe("a change without a time in the API", 1, 1, 0, 0)
		m.taken(time.Now().Add(-time.Second), time.Now().Add(-3*time.Second))
		m.inForce()
		m.inForce()
		mustBe("a change", 2, 2, 1, 3)
		m.taken(time.Now(), time.Now().Add(10*time.Second))
		m.inForce()
		mustBe("the API server's clock is ahead", 3, 2, 2, 3)
		m.taken(time.Now(), time.Now().Add(-2*time.Second)) // it was not written to the kernel
		m.taken(time.Now(), time.Now().Add(-5*time.Second))
		m.taken(time.Now(), time.Time{})
		m.inForce()
		mustBe("the oldest of several", 4, 2, 3, 8)
		m.taken(time.Now(), time.Now())
		m.forget()
		time.Sleep(time.Hour)
		m.inForce()
		mustBe("the last policy was deleted before a change was written", 4, 2, 3, 8)
	})
}
