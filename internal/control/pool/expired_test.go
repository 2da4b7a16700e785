package pool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/sim/faults"
)

// An ADD waits for 90 s at most. Under a back-off of one minute and then two, one that came
// with the outage failed although the outage lasted for little more than a minute.
func TestThePoolGrowsSoonAfterRefusedCredentials(t *testing.T) {
	for _, code := range []string{"RequestExpired", "ExpiredToken", "AuthFailure"} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newCloudNode(t)
				n.scale(1)
				time.Sleep(grown)
				if err := n.faults.Set(faults.Plan{Calls: []faults.Call{{Action: "*", Do: faults.Fail, Code: code, Count: -1}}}); err != nil {
					t.Fatal(err)
				}
				n.scale(30)
				time.Sleep(70 * time.Second)
				if err := n.faults.Set(faults.Plan{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(45 * time.Second)
				free := 0
				for _, e := range n.view().ENIs {
					free += e.Count(ipam.Free)
				}
				if free < 30 {
					t.Errorf("%d addresses for 30 pods 45 s after the outage", free)
				}
			})
		})
	}
}
