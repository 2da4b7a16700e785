package branch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/groupmode"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// records is a CNINode as it is known.
type records struct {
	object *vpcresources.CNINode
	known  bool
}

func (r *records) Object() (*vpcresources.CNINode, bool) { return r.object, r.known }

func (r *records) Live(context.Context) (*vpcresources.CNINode, error) { return r.object, nil }

// recorded is a CNINode with a decision.
func recorded(mode groupmode.Mode) *vpcresources.CNINode {
	n := object(instance)
	n.Status.Trunkline.Mode = &vpcresources.ModeRecord{Mode: vpcresources.GroupMode(mode), Reason: "Why", Message: "because"}
	return n
}

func ofAWS() *vpcresources.CNINode {
	return &vpcresources.CNINode{ObjectMeta: metav1.ObjectMeta{Name: "n1", Finalizers: []string{vpcresources.FinalizerAWS}}}
}

func TestTheModeOfTheNodeIsTheControllersDecision(t *testing.T) {
	store := statetest.Open(t, t.TempDir())
	big := kube.Node{Labels: map[string]string{"node.kubernetes.io/instance-type": "m5.large"}}
	small := kube.Node{Labels: map[string]string{"node.kubernetes.io/instance-type": "t3.medium"}}
	labelled := kube.Node{Labels: map[string]string{"node.kubernetes.io/instance-type": "m5.large", groupmode.Label: "ebpf"}}
	for name, c := range map[string]struct {
		record records
		node   *kube.Node
		want   groupmode.Mode
		says   string
	}{
		"not read yet":                            {records{}, &big, groupmode.Undecided, "has not shown the CNINode"},
		"no CNINode":                              {records{nil, true}, &big, groupmode.Undecided, "no CNINode"},
		"no decision":                             {records{object(instance), true}, &big, groupmode.Undecided, "recorded no decision"},
		"decided":                                 {records{recorded(groupmode.EBPF), true}, &big, groupmode.EBPF, "because"},
		"decided, the Node is not known":          {records{recorded(groupmode.Own), true}, nil, groupmode.Own, "because"},
		"a record that cannot be decoded":         {records{unreadable(), true}, &big, groupmode.Undecided, "cannot be decoded"},
		"a mode of another version":               {records{recorded("later"), true}, &big, groupmode.Undecided, "recorded no decision"},
		"recorded that it's undecided":            {records{recorded(groupmode.Undecided), true}, &big, groupmode.Undecided, "because"},
		"AWS's":                                   {records{ofAWS(), true}, &big, groupmode.Managed, "AWS's VPC resource controller owns the CNINode"},
		"AWS's, a type without a trunk":           {records{ofAWS(), true}, &small, groupmode.EBPF, "t3"},
		"AWS's, with the label":                   {records{ofAWS(), true}, &labelled, groupmode.EBPF, groupmode.Label},
		"AWS's, the Node is not known":            {records{ofAWS(), true}, nil, groupmode.Undecided, "has not shown the Node"},
		"the label of a node that is not decided": {records{object(instance), true}, &labelled, groupmode.Undecided, "recorded no decision"},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewModes(ModesDeps{State: store, Record: &c.record, Node: func() (kube.Node, bool) {
				if c.node == nil {
					return kube.Node{}, false
				}
				return *c.node, true
			}})
			if got := m.Choice(); got.Mode != c.want || !strings.Contains(got.Message, c.says) || got.Reason == "" {
				t.Errorf("%s; want %s, %q", got, c.want, c.says)
			}
		})
	}
	fixed := NewModes(ModesDeps{Setting: groupmode.Own, State: store, Record: &records{recorded(groupmode.EBPF), true}})
	if got := fixed.Choice(); got.Mode != groupmode.Own || got.Reason != groupmode.BySetting {
		t.Errorf("the setting own: %s", got)
	}
}

// unreadable is a CNINode with a record that was edited by hand.
func unreadable() *vpcresources.CNINode {
	n := object(instance)
	n.Status.Trunkline = &vpcresources.BranchLedger{Unreadable: "branches: not a list"}
	return n
}

func TestADecisionOnAnotherInstanceIsNotUsed(t *testing.T) {
	store := statetest.Open(t, t.TempDir())
	statetest.Update(t, store, func(tx *state.Tx) error { return tx.PutNode(state.Node{Instance: "i-0fedcba9876543210"}) })
	m := NewModes(ModesDeps{State: store, Record: &records{recorded(groupmode.EBPF), true}, Node: func() (kube.Node, bool) { return kube.Node{}, true }})
	if got := m.Choice(); got.Mode != groupmode.Undecided {
		t.Errorf("%s", got)
	}
}

// What the node does with a pod by the mode: a selected one never starts while that is not known.
func TestTheModeDecidesWhatAPodNeeds(t *testing.T) {
	s := kubetest.New(t)
	s.Put("/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies", policyOf("shop", "web"))
	s.Put("/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies", policyOf("kube-system", "web"))
	client, err := kube.FromREST(s.REST())
	if err != nil {
		t.Fatal(err)
	}
	policies := kube.NewGroupObjects(kube.GroupOptions{Client: client, Accounts: true, SnapshotPath: t.TempDir() + "/groups.json", Log: quiet()})
	events := kube.NewEvents(client.Core, "n1")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { stop(); wg.Wait() }()
	wg.Go(func() { events.Run(ctx) })
	wg.Go(func() { _ = policies.Run(ctx) })
	until(t, "policies are known", func() bool { _, known := policies.Decide(securitygroup.Pod{}); return known })
	const starts, again, never = 0, cnirpc.CodeTryAgain, cnirpc.CodeRefused
	store := statetest.Open(t, t.TempDir())
	for _, c := range []struct {
		namespace, app string
		requests       bool
		want           map[groupmode.Mode]uint
	}{
		{"shop", "web", true, map[groupmode.Mode]uint{groupmode.Undecided: again, groupmode.Own: starts, groupmode.Managed: starts, groupmode.EBPF: starts}},
		{"shop", "web", false, map[groupmode.Mode]uint{groupmode.Undecided: again, groupmode.Own: never, groupmode.Managed: never, groupmode.EBPF: starts}},
		{"shop", "other", false, map[groupmode.Mode]uint{groupmode.Undecided: starts, groupmode.Own: starts, groupmode.Managed: starts, groupmode.EBPF: starts}},
		{"shop", "other", true, map[groupmode.Mode]uint{groupmode.Undecided: again, groupmode.Own: starts, groupmode.Managed: starts, groupmode.EBPF: starts}},
		{"kube-system", "web", false, map[groupmode.Mode]uint{groupmode.Undecided: starts, groupmode.Own: starts, groupmode.Managed: starts, groupmode.EBPF: starts}},
	} {
		for mode, want := range c.want {
			m := NewModes(ModesDeps{State: store, Record: &records{recorded(mode), true}})
			pod := m.Wanted(kube.Pod{
				PodRef: kube.PodRef{Namespace: c.namespace, Name: "p"}, UID: "uid", Labels: map[string]string{"app": c.app}, ServiceAccount: "default", BranchInterface: c.requests,
			})
			if pod.BranchInterface != (c.requests && mode != groupmode.EBPF) {
				t.Errorf("%s, requests %v: wants a branch: %v", mode, c.requests, pod.BranchInterface)
			}
			err := Check{Policies: policies, Events: events, Modes: m, Wait: 60 * time.Millisecond, Excluded: []string{"kube-system"}}.Admit(t.Context(), pod)
			var refusal *cnirpc.Error
			if errors.As(err, &refusal); (err == nil) != (want == starts) || refusal != nil && refusal.Code != want {
				t.Errorf("%s/%s, requests %v, mode %s: %v, want code %d", c.namespace, c.app, c.requests, mode, err, want)
			}
		}
	}
	until(t, "the event says why", func() bool {
		for _, key := range s.Keys("/api/v1/events") {
			var e corev1.Event
			if s.Get("/api/v1/events", key, &e); e.Reason == securitygroup.EventNotApplied && strings.Contains(e.Message, "because") {
				return true
			}
		}
		return false
	})
}

// A pod that waits starts once the node is decided.
func TestAPodWaitsWhileTheNodeIsUndecided(t *testing.T) {
	store := statetest.Open(t, t.TempDir())
	var mu sync.Mutex
	r := &guardedRecord{mu: &mu, records: records{recorded(groupmode.Undecided), true}}
	check := Check{Modes: NewModes(ModesDeps{State: store, Record: r}), Wait: 10 * time.Second}
	done := make(chan error, 1)
	go func() {
		done <- check.Admit(t.Context(), kube.Pod{PodRef: kube.PodRef{Namespace: "shop", Name: "p"}, UID: "uid", BranchInterface: true})
	}()
	mu.Lock()
	r.object = recorded(groupmode.Own)
	mu.Unlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type guardedRecord struct {
	mu *sync.Mutex
	records
}

func (r *guardedRecord) Object() (*vpcresources.CNINode, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.records.Object()
}

// An older sandbox of a pod has a branch, and the new one, of a node that enforces groups itself, has none: the
// node judges the pod.
func TestAPodHasABranchIfAllOfItsSandboxesHaveOne(t *testing.T) {
	store := statetest.Open(t, t.TempDir())
	kinds := []endpoint.Kind{endpoint.Branch, endpoint.Routed}
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		statetest.Update(t, store, func(tx *state.Tx) error {
			for i, kind := range order {
				e := endpoint.Endpoint{
					Key: endpoint.Key{ContainerID: fmt.Sprintf("c%d", i), IfName: "eth0"}, Pod: endpoint.Pod{Namespace: "shop", Name: "web", UID: "uid-web"},
					Stage: endpoint.Ready, ID: endpoint.ID(i + 1), Link: fmt.Sprintf("l%d", i), Attachment: endpoint.Attachment{Kind: kinds[kind]},
				}
				if err := tx.Put(e); err != nil {
					return err
				}
			}
			return nil
		})
		m := NewModes(ModesDeps{State: store, Record: &records{recorded(groupmode.EBPF), true}})
		if got := m.Have([]kube.Pod{{UID: "uid-web", BranchInterface: true}}); got[0].BranchInterface {
			t.Errorf("order %v: the pod has a branch", order)
		}
	}
}

// The node had the mode ebpf when the pod was wired, and branches are the setting now: that the pod requests one
// is no reason to leave its groups to the VPC.
func TestAPodThatWasWiredWithoutABranchHasNoneInAnotherMode(t *testing.T) {
	store := statetest.Open(t, t.TempDir())
	statetest.Update(t, store, func(tx *state.Tx) error {
		return tx.Put(endpoint.Endpoint{
			Key: endpoint.Key{ContainerID: "c", IfName: "eth0"}, Pod: endpoint.Pod{Namespace: "shop", Name: "web", UID: "uid-web"},
			Stage: endpoint.Ready, ID: 1, Link: "l", Attachment: endpoint.Attachment{Kind: endpoint.Routed},
		})
	})
	pods := []kube.Pod{{UID: "uid-web", BranchInterface: true}, {UID: "uid-new", BranchInterface: true}}
	for _, mode := range []groupmode.Mode{groupmode.Own, groupmode.Managed} {
		if got := NewModes(ModesDeps{State: store, Setting: mode}).Have(pods); got[0].BranchInterface || !got[1].BranchInterface {
			t.Errorf("%s: %+v, want a branch of the new pod only", mode, got)
		}
	}
	if got := NewModes(ModesDeps{State: store, Setting: "off"}).Have(pods); !got[0].BranchInterface {
		t.Error("off: the pods are changed")
	}
}
