package branch

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

const (
	cniNodes = "/apis/vpcresources.k8s.aws/v1alpha1/cninodes"
	instance = vpc.InstanceID("i-0123456789abcdef0")
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// ownBranch is the branch of the pod web, as it is in the annotation and in the record.
func ownBranch() (podeni.Entry, vpcresources.BranchRecord) {
	return podeni.Entry{
		ENI: "eni-0123456789abcdef0", MAC: vpc.MAC{2, 0, 0, 0, 0, 7}, VLAN: 3, IPv4: netip.MustParseAddr("10.0.1.7"),
		Subnet4: netip.MustParsePrefix("10.0.0.0/20"), Association: "trunk-assoc-0123456789abcdef0",
	}, vpcresources.BranchRecord{
		ID: "br-1", ENIID: "eni-0123456789abcdef0", MAC: "02:00:00:00:00:07", VLANID: 3, IPv4: "10.0.1.7", SubnetCIDR: "10.0.0.0/20",
		AssociationID: "trunk-assoc-0123456789abcdef0", Phase: vpcresources.BranchBound, Pod: &vpcresources.PodReference{UID: "uid-web", Namespace: "shop", Name: "web"},
	}
}

func object(of vpc.InstanceID, branches ...vpcresources.BranchRecord) *vpcresources.CNINode {
	return &vpcresources.CNINode{
		TypeMeta: metav1.TypeMeta{APIVersion: "vpcresources.k8s.aws/v1alpha1", Kind: "CNINode"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: vpcresources.CNINodeStatus{Trunkline: &vpcresources.BranchLedger{InstanceID: string(of), Branches: branches}},
	}
}

func ownRecord(t *testing.T, s *kubetest.Server) *kube.OwnCNINode {
	t.Helper()
	client, err := kube.FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	return kube.NewOwnCNINode(kube.OwnCNINodeOptions{Client: client, NodeName: "n1", SnapshotPath: filepath.Join(t.TempDir(), "cninode.json"), Log: quiet()})
}

// What no admission has kept out is refused by the node: a branch of another pod, of another node, with
// another VLAN, or that the controller has not given to the pod.
func TestAnAnnotationThatTheRecordDoesNotHaveIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(e *podeni.Entry, n *vpcresources.CNINode)
		want   error
	}{
		"as recorded": {func(*podeni.Entry, *vpcresources.CNINode) {}, nil},
		"being bound": {func(_ *podeni.Entry, n *vpcresources.CNINode) {
			n.Status.Trunkline.Branches[0].Phase = vpcresources.BranchBinding
		}, nil},
		"another VLAN":               {func(e *podeni.Entry, _ *vpcresources.CNINode) { e.VLAN = 4 }, podeni.ErrOtherVLAN},
		"another address":            {func(e *podeni.Entry, _ *vpcresources.CNINode) { e.IPv4 = netip.MustParseAddr("10.0.1.8") }, podeni.ErrForged},
		"another MAC":                {func(e *podeni.Entry, _ *vpcresources.CNINode) { e.MAC[5] = 8 }, podeni.ErrForged},
		"a branch of another pod":    {func(_ *podeni.Entry, n *vpcresources.CNINode) { n.Status.Trunkline.Branches[0].Pod.UID = "uid-db" }, podeni.ErrOtherPod},
		"a node of that name before": {func(_ *podeni.Entry, n *vpcresources.CNINode) { n.Status.Trunkline.InstanceID = "i-0fedcba9876543210" }, podeni.ErrOtherNode},
		"a branch of another node":   {func(e *podeni.Entry, _ *vpcresources.CNINode) { e.ENI = "eni-0fedcba9876543210" }, podeni.ErrForged},
		"a branch of its pod before": {func(_ *podeni.Entry, n *vpcresources.CNINode) {
			n.Status.Trunkline.Branches[0].Phase = vpcresources.BranchCooling
		}, podeni.ErrForged},
		"one that is not associated": {func(_ *podeni.Entry, n *vpcresources.CNINode) {
			n.Status.Trunkline.Branches[0].Phase = vpcresources.BranchAssociating
		}, podeni.ErrForged},
		"without a record of any":          {func(_ *podeni.Entry, n *vpcresources.CNINode) { n.Status.Trunkline = nil }, podeni.ErrForged},
		"a record that cannot be read":     {func(_ *podeni.Entry, n *vpcresources.CNINode) { n.Status.Trunkline.Branches[0].IPv4 = "10.0.1" }, podeni.ErrForged},
		"an earlier text of AWS's program": {func(e *podeni.Entry, _ *vpcresources.CNINode) { e.Association = "" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			entry, record := ownBranch()
			n := object(instance, record)
			tt.change(&entry, n)
			s := kubetest.New(t)
			s.Put(cniNodes, n)
			c := New(Deps{Record: ownRecord(t, s), Owned: func() bool { return true }})
			err := c.verify(t.Context(), instance, kube.Pod{UID: "uid-web"}, []podeni.Entry{entry})
			var refusal *cnirpc.Error
			if tt.want == nil && err != nil || tt.want != nil && (!errors.As(err, &refusal) || refusal.Code != cnirpc.CodeRefused) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if got := c.agrees(n, instance, kube.Pod{UID: "uid-web"}, []podeni.Entry{entry}); !errors.Is(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

// The watch of pods may show an annotation before that of CNINodes shows the record. A pod waits while
// neither the cache nor the API server has it, and needs no API server where the cache has it.
func TestAnAnnotationIsComparedWithTheNewestRecord(t *testing.T) {
	entry, record := ownBranch()
	s := kubetest.New(t)
	s.Put(cniNodes, object(instance))
	own := ownRecord(t, s)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { stop(); wg.Wait() }()
	wg.Go(func() { _ = own.Run(ctx) })
	c := New(Deps{Record: own, Owned: func() bool { return true }})
	verify := func() error {
		return c.verify(t.Context(), instance, kube.Pod{UID: "uid-web"}, []podeni.Entry{entry})
	}
	until(t, "the object is cached", func() bool { o, known := own.Object(); return known && o != nil })
	s.SetDown(true)
	if err := verify(); !waits(err) {
		t.Errorf("not recorded, as far as is known: %v, want that the ADD waits", err)
	}
	s.SetDown(false)
	s.Put(cniNodes, object(instance, record))
	if err := verify(); err != nil {
		t.Errorf("recorded before the annotation was written: %v", err)
	}
	until(t, "the record is cached", func() bool { o, _ := own.Object(); return o != nil && len(o.Status.Trunkline.Branches) == 1 })
	s.SetDown(true)
	if err := verify(); err != nil {
		t.Errorf("without the API server: %v", err)
	}
}

// AWS's record has no pods, and what it lacks is not known to be forged.
func TestWhereAWSsControllerOwnsBranchesItsRecordMustNotContradict(t *testing.T) {
	for name, tt := range map[string]struct {
		status vpcresources.CNINodeStatus
		want   error
	}{
		"without a record":     {vpcresources.CNINodeStatus{}, nil},
		"not in it":            {vpcresources.CNINodeStatus{TrunkInterface: &vpcresources.TrunkInterface{ID: "eni-1"}}, nil},
		"in it":                {recordOfAWS(3, "02:00:00:00:00:07"), nil},
		"in it, without a MAC": {recordOfAWS(3, ""), nil},
		"with another VLAN":    {recordOfAWS(4, "02:00:00:00:00:07"), podeni.ErrOtherVLAN},
		"with another MAC":     {recordOfAWS(3, "02:00:00:00:00:08"), podeni.ErrForged},
	} {
		t.Run(name, func(t *testing.T) {
			entry, _ := ownBranch()
			n := object(instance)
			n.Status = tt.status
			if err := New(Deps{Owned: func() bool { return false }}).agrees(n, instance, kube.Pod{UID: "uid-web"}, []podeni.Entry{entry}); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
}

func recordOfAWS(vlan int32, mac string) vpcresources.CNINodeStatus {
	return vpcresources.CNINodeStatus{TrunkInterface: &vpcresources.TrunkInterface{ID: "eni-1", Branches: []vpcresources.BranchInterface{
		{ID: "eni-0123456789abcdef0", VLANID: vlan, MACAddress: mac},
	}}}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}
