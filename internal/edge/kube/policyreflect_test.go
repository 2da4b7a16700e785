package kube

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A definition that was deleted may exist again at any time, and pods of its objects are created then.
func TestAResourceThatIsNotServedIsTriedAgainSoonForSomeTime(t *testing.T) {
	absent := apierrors.NewNotFound(schema.GroupResource{Group: "vpcresources.k8s.aws", Resource: "securitygrouppolicies"}, "")
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := newPauses()
	now := began
	for range 10 { // an API server that is down before
		now = now.Add(p.after(now, now, errors.New("connection refused")))
	}
	if pause := p.after(now, now, errors.New("connection refused")); pause < lastPause/2 {
		t.Errorf("the API server is down, and the pause is %s", pause)
	}
	for absentAt := now; now.Sub(absentAt) < unservedFor; {
		pause := p.after(now, now, absent)
		if pause < firstPause || pause > 2*firstPause {
			t.Fatalf("not served for %s, and the pause is %s", now.Sub(absentAt), pause)
		}
		now = now.Add(pause)
	}
	for range 10 {
		now = now.Add(p.after(now, now, absent))
	}
	if pause := p.after(now, now, absent); pause < lastPause/2 {
		t.Errorf("not served for long, and the pause is %s", pause)
	}
	if pause := p.after(now, now.Add(time.Hour), errors.New("the watch ended")); pause > 2*firstPause {
		t.Errorf("served again for an hour, and the pause is %s", pause)
	}
	if pause := p.after(now, now, absent); pause > 2*firstPause {
		t.Errorf("absent once more, and the pause is %s", pause)
	}
}
