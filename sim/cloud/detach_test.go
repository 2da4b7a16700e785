package cloud_test

import (
	"testing"
	"time"

	"github.com/trunkline/trunkline/sim/cloud"
)

func TestADetachmentTakesItsTime(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := newCloud(t, cloud.Options{Now: func() time.Time { return now }, DetachTime: cloud.DetachTime})
	one := c.State().InstanceNamed("one")
	i := create(t, c, cloud.NewInterface{Subnet: one.Subnet})
	a, err := c.Interface(i.ID).Attach(one.ID, 1, 0)
	if err == nil {
		err = c.FinishAttach(a.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	for round := range 2 { // the second call is refused and changes nothing
		switch err := c.Detach(a.ID); {
		case round == 0 && err != nil:
			t.Fatal(err)
		case round == 1:
			wantCode(t, err, "IncorrectState", "The attachment '"+string(a.ID)+"' is detaching.")
		}
		now = now.Add(cloud.DetachTime / 2)
		if err := c.FinishDetach(a.ID); err != nil {
			t.Fatal(err)
		}
		if got := c.State().Interfaces[i.ID].Attachment; now.Before(a.Since.Add(cloud.DetachTime)) && got == nil {
			t.Fatalf("detached after %s", now.Sub(a.Since))
		} else if !now.Before(a.Since.Add(cloud.DetachTime)) && got != nil {
			t.Fatalf("%s after %s", got.Status, now.Sub(a.Since))
		}
		if now.Before(a.Since.Add(cloud.DetachTime)) {
			wantCode(t, c.Interface(i.ID).Delete(), "InvalidParameterValue", "Network interface '"+string(i.ID)+"' is currently in use.")
		}
	}
	if err := c.Interface(i.ID).Delete(); err != nil {
		t.Error(err)
	}
}
