package report

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/podcidr"
)

func TestTheRangeListsTheAddressesThatAreNotFree(t *testing.T) {
	now := time.Now()
	at := func(id endpoint.ID, name, addr string, removing bool) endpoint.Endpoint {
		return endpoint.Adopt(id, endpoint.Key{ContainerID: name, IfName: "eth0"}, endpoint.Pod{Namespace: "default", Name: name},
			endpoint.Wire{Addresses: endpoint.AddressesOf(netip.MustParseAddr(addr)), Link: "eni" + name}, removing, now)
	}
	cool := func(addr string, since time.Time) podcidr.Cooling {
		return podcidr.Cool(netip.MustParseAddr(addr), since, 30*time.Second)
	}
	row := rangeRow(netip.MustParsePrefix("10.244.1.0/24"), []endpoint.Endpoint{
		at(1, "three", "10.244.1.4", false), at(2, "two", "10.244.1.3", true), at(3, "old", "10.9.0.7", false),
	}, []podcidr.Cooling{cool("10.244.1.2", now), cool("10.244.1.9", now.Add(-time.Minute)), podcidr.CoolAll(now, time.Minute)}, now)
	var got []string
	for _, a := range row.Addresses {
		got = append(got, strings.TrimSpace(a.Address.String()+" "+a.State+" "+a.Pod+" "+a.Why))
	}
	want := []string{
		"10.9.0.7 assigned default/old outside 10.244.1.0/24: adopted from an earlier registration of the node",
		"10.244.1.2 cooling",
		"10.244.1.3 quarantined default/two the pod is being removed and its link may still exist",
		"10.244.1.4 assigned default/three",
	}
	if !slices.Equal(got, want) || row.ID != rangeID || row.CIDR.String() != "10.244.1.0/24" {
		t.Errorf("%+v\n%q\nwant %q", row, got, want)
	}
}

// unbraked is a cluster without a Brake.
type unbraked struct{ Cluster }

func (unbraked) Freeze() (trunkline.Freeze, string) { return trunkline.FreezeNone, "" }

// The journal may be of an agent that had the other backend.
func TestTheStatusOfANodeWithoutACloudDoesNotMentionEC2(t *testing.T) {
	s := statetest.Open(t, t.TempDir())
	statetest.Observe(t, s)
	statetest.Update(t, s, func(tx *state.Tx) error {
		later := time.Now().Add(time.Hour)
		rows, _ := tx.Ledger().Observe(nil, later) // EC2 does not show eni-1
		tx.Record(rows...)
		return nil
	})
	state.Set(s, s.Owned().Node, state.Node{PodCIDR: netip.MustParsePrefix("10.244.1.0/24")})
	r := &Reporter{Deps: Deps{State: s, Cluster: unbraked{}}}
	raw, err := json.MarshalIndent(r.status(), "", " ")
	if err != nil || strings.Contains(string(raw), "EC2") || !strings.Contains(string(raw), "the kernel and the agent's record agree") {
		t.Errorf("%v, the status is\n%s", err, raw)
	}
	state.Set(s, s.Owned().Node, state.Node{Instance: "i-1"})
	if c := r.status().Conditions; !slices.ContainsFunc(c, func(c metav1.Condition) bool { return c.Reason == reasonAtEC2 }) {
		t.Errorf("on an EC2 instance: %+v, want the difference", c)
	}
}
