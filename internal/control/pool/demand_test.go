package pool

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/control/state/statetest"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/internal/edge/link"
)

func TestAPodThatWaitedLongForANodeIsDemandOnceItIsBound(t *testing.T) {
	now := time.Now()
	server := kubetest.New(t)
	for name, conditions := range map[string][]corev1.PodCondition{
		"scheduled": {
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute))},
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)},
		},
		"made-for-the-node": nil,
	} {
		server.Put("/api/v1/pods", &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status:     corev1.PodStatus{Phase: corev1.PodPending, Conditions: conditions},
		})
	}
	p := newTestPool(t, &lossy{broken: func() bool { return false }})
	client, err := kube.FromREST(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 1)
	cluster := kube.NewCluster(kube.Options{Client: client, NodeName: "n1", Log: p.Log, Changed: func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	p.Cluster, p.Observer.node.Limits = cluster, vpc.Limits{ENIs: 4, IPv4: 15}
	done := make(chan struct{})
	go func() { defer close(done); _ = cluster.Run(t.Context()) }()
	t.Cleanup(func() { <-done })
	for !cluster.Synced() {
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatal("the pods are not seen")
		}
	}
	s := p.snapshot(now)
	if n := ipam.Plan(s, p.IPAM, now).Numbers.Demand; n != 1 {
		t.Errorf("demand %d of %+v, want the pod that came to the node now and not the one that is there for an hour", n, s.Pending)
	}
	if !slices.ContainsFunc(s.Pending, func(p ipam.Pending) bool { return p.Name == "scheduled" && p.Bound.Unix() == now.Unix() }) {
		t.Errorf("pending %+v", s.Pending)
	}
}

// node is a cluster with pods. It calls on while the pool reads the Node.
type node struct {
	quiet
	pods []kube.Pod
	on   func()
}

func (n *node) Pods() []kube.Pod { return n.pods }

func (n *node) Node() (kube.Node, bool) {
	if n.on != nil {
		n.on()
	}
	return n.quiet.Node()
}

func bound(name string, at time.Time) kube.Pod {
	return kube.Pod{PodRef: kube.PodRef{Namespace: "default", Name: name}, UID: "uid-" + name, Bound: at}
}

// waits enters an ADD of a container of the pod default/NAME in the table.
func (p *testPool) waits(container, name string, since time.Time) endpoint.Key {
	row := state.Waiting{Key: endpoint.Key{ContainerID: container, IfName: "eth0"}, Since: since}
	if name != "" {
		row.Pod = endpoint.Pod{Namespace: "default", Name: name, UID: "uid-" + name}
	}
	state.Set(p.State, p.State.CNITables().Waiting, row)
	return row.Key
}

func TestDemandIsEachADDThatWaitsAndEachPodWithoutOne(t *testing.T) {
	now := time.Now()
	old := now.Add(-time.Hour)
	for name, c := range map[string]struct {
		pods []kube.Pod
		adds map[string]string // pods by container
		want int
	}{
		"a pod and its ADD":                           {[]kube.Pod{bound("a", now)}, map[string]string{"a1": "a"}, 1},
		"a pod that came long ago, and its ADD":       {[]kube.Pod{bound("a", old)}, map[string]string{"a1": "a"}, 1},
		"a pod that came long ago, and another's ADD": {[]kube.Pod{bound("a", old), bound("b", now)}, map[string]string{"b1": "b"}, 1},
		"a pod, and an ADD of one that is not shown":  {[]kube.Pod{bound("a", now)}, map[string]string{"b1": "b"}, 2},
		"ADDs without a pod":                          {nil, map[string]string{"x": "", "y": ""}, 2},
		"a pod with two sandboxes":                    {[]kube.Pod{bound("a", now)}, map[string]string{"a1": "a", "a2": "a"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, &lossy{broken: func() bool { return false }})
			p.Cluster, p.Observer.node.Limits = &node{pods: c.pods}, vpc.Limits{ENIs: 4, IPv4: 15}
			for container, pod := range c.adds {
				p.waits(container, pod, now)
			}
			s := p.snapshot(now)
			if n := ipam.Plan(s, p.IPAM, now).Numbers.Demand; n != c.want {
				t.Errorf("demand %d of %+v, want %d", n, s.Pending, c.want)
			}
		})
	}
}

// The ADD takes its address while the pool reads what the planner needs.
func TestAnADDIsNotDemandBesideItsOwnAddress(t *testing.T) {
	now := time.Now()
	p := newTestPool(t, &lossy{broken: func() bool { return false }})
	key := p.waits("a1", "a", now)
	p.Cluster, p.Observer.node.Limits = &node{on: func() {
		statetest.Update(t, p.State, func(tx *state.Tx) error {
			e := endpoint.New(1, key, endpoint.Pod{Namespace: "default", Name: "a", UID: "uid-a"}, "trunkline", now, now)
			_, err := p.Backend().Assign(tx, e, now)
			p.State.CNITables().Waiting.Delete(tx.Txn(), state.WaitingByKey().Query(key))
			return err
		})
	}}, vpc.Limits{ENIs: 4, IPv4: 15}
	if n := ipam.Plan(p.snapshot(now), p.IPAM, now).Numbers; n.Demand+n.Assigned > 1 {
		t.Errorf("one ADD is a demand of %d beside %d assigned addresses", n.Demand, n.Assigned)
	}
}

// AWS's CNI gave it an address of a delegated prefix, which the ledger does not have.
func TestAPodOnAnAddressOfAPrefixIsNotDemand(t *testing.T) {
	now := time.Now()
	p := newTestPool(t, &lossy{broken: func() bool { return false }})
	theirs := bound("a", now)
	theirs.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.33")}
	p.Cluster, p.Observer.node.Limits = &node{pods: []kube.Pod{theirs, bound("b", now)}}, vpc.Limits{ENIs: 4, IPv4: 15}
	statetest.Update(t, p.State, func(tx *state.Tx) error {
		seen := statetest.First()
		seen.ENI.Prefixes = ipam.PrefixesOf([]netip.Prefix{netip.MustParsePrefix("10.0.0.32/28")})
		rows, _ := tx.Ledger().Observe([]ipam.Observed{seen}, now)
		tx.Record(rows...)
		return nil
	})
	claim(t, p.State, []kube.Pod{theirs}, link.Used{})
	s := p.snapshot(now)
	if len(s.Pending) != 1 || s.Pending[0].Name != "b" {
		t.Errorf("pending %+v, want b alone", s.Pending)
	}
	if n := ipam.Plan(s, p.IPAM, now).Claimed; n != 1 {
		t.Errorf("%d addresses are counted as in use by another CNI's pods, want 1", n)
	}
}

// The plugin refuses it: an interface for it would be made in vain.
func TestAPodThatRequestsABranchInterfaceIsNotDemand(t *testing.T) {
	now := time.Now()
	p := newTestPool(t, &lossy{broken: func() bool { return false }})
	branch := bound("branch", now)
	branch.BranchInterface = true
	p.Cluster, p.Observer.node.Limits = &node{pods: []kube.Pod{branch, bound("b", now)}}, vpc.Limits{ENIs: 4, IPv4: 15}
	s := p.snapshot(now)
	if n := ipam.Plan(s, p.IPAM, now).Numbers.Demand; n != 1 || s.Pending[0].Name != "b" {
		t.Errorf("demand %d of %+v, want b alone", n, s.Pending)
	}
}
