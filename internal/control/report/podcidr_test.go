package report

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/cniconf"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/podcidr"
	"github.com/trunkline/trunkline/internal/edge/kube"
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
	row := podCIDR(netip.MustParsePrefix("10.244.1.0/24"), []endpoint.Endpoint{
		at(1, "three", "10.244.1.4", false), at(2, "two", "10.244.1.3", true), at(3, "old", "10.9.0.7", false),
	}, []podcidr.Cooling{cool("10.244.1.2", now), cool("10.244.1.9", now.Add(-time.Minute)), podcidr.CoolAll(now, time.Minute)}, now)
	var got []string
	for _, a := range row.Addresses {
		got = append(got, strings.TrimSpace(a.Address.String()+" "+a.State+" "+a.Pod+" "+a.Why))
	}
	want := []string{
		"10.9.0.7 assigned default/old outside 10.244.1.0/24: adopted from an earlier registration of the node",
		"10.244.1.2 cooling  released; peers may still know the earlier pod until " + now.Add(30*time.Second).UTC().Format(time.TimeOnly),
		"10.244.1.3 quarantined default/two the pod is being removed and its link may still exist",
		"10.244.1.4 assigned default/three assigned at the pod's ADD",
	}
	if !slices.Equal(got, want) || row.CIDR.String() != "10.244.1.0/24" {
		t.Errorf("%+v\n%q\nwant %q", row, got, want)
	}
}

// unbraked is a cluster without a Brake, which has not shown the Node.
type unbraked struct{ Cluster }

func (unbraked) Node() (kube.Node, bool) { return kube.Node{}, false }

func (unbraked) Freeze() (trunkline.Freeze, string) { return trunkline.FreezeNone, "" }

// The journal may be of an agent that had the other backend.
func noProblems() []cniconf.Problem { return nil }

func TestTheStatusOfANodeWithoutACloudHasNoDifferencesAtEC2(t *testing.T) {
	s := statetest.Open(t, t.TempDir())
	statetest.Observe(t, s)
	statetest.Update(t, s, func(tx *state.Tx) error {
		later := time.Now().Add(time.Hour)
		rows, _ := tx.Ledger().Observe(nil, later) // EC2 does not show eni-1
		tx.Record(rows...)
		return nil
	})
	r := &Reporter{Deps: Deps{State: s, Cluster: unbraked{}, Backend: config.BackendPodCIDR, Problems: noProblems, Enforcement: off}}
	raw, err := json.MarshalIndent(r.status(), "", " ")
	if err != nil || strings.Contains(string(raw), "eni-1") || !strings.Contains(string(raw), "the kernel and the agent's record agree") {
		t.Errorf("%v, the status is\n%s", err, raw)
	}
	r.Backend = config.BackendENI
	if c := r.status().Conditions; !slices.ContainsFunc(c, func(c metav1.Condition) bool { return c.Reason == reasonAtEC2 }) {
		t.Errorf("on an EC2 instance: %+v, want the difference", c)
	}
}

func TestANodeReportsThatItDoesNotUseEC2AndWhichSettingsHaveNoEffect(t *testing.T) {
	cfg, err := config.Load(config.Sources{Flags: map[string]string{"warm-ips": "4"}})
	if err != nil {
		t.Fatal(err)
	}
	status := func(backend string) (trunkline.AddressMode, metav1.Condition) {
		r := New(cfg, Deps{
			Log: slog.New(slog.DiscardHandler), State: statetest.Open(t, t.TempDir()), Cluster: unbraked{},
			Backend: backend, BackendWhy: "set by flag --backend", Problems: noProblems, Enforcement: off,
		})
		s := r.status()
		i := slices.IndexFunc(s.Conditions, func(c metav1.Condition) bool { return c.Type == trunkline.ConditionEC2Reachable })
		if i < 0 {
			t.Fatalf("%s: no condition about EC2 among %+v", backend, s.Conditions)
		}
		return s.Mode, s.Conditions[i]
	}
	mode, c := status(config.BackendPodCIDR)
	if mode != trunkline.ModePodCIDR || c.Status != metav1.ConditionUnknown || c.Reason != trunkline.ReasonEC2NotUsed {
		t.Errorf("%s, %+v", mode, c)
	}
	for _, want := range []string{"podcidr (set by flag --backend)", "no VPC addresses", "no interfaces", "no warm pool", "brakes stop nothing", "without effect: warm-ips (flag --warm-ips)"} {
		if !strings.Contains(c.Message, want) {
			t.Errorf("%q does not say %q", c.Message, want)
		}
	}
	if mode, c := status(config.BackendENI); mode != trunkline.ModeSecondaryIP || c.Status != metav1.ConditionTrue {
		t.Errorf("with EC2: %s, %+v", mode, c)
	}
}
