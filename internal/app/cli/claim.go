package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
)

// claimLease is the Lease that a run renews in its namespace. Whether a run goes on
// is told by the Lease changing, not by the times in it: clocks differ.
const claimLease = "connectivity-test"

// renewEvery is how often a run renews its claim, well below the five seconds after
// which Kubernetes begins to empty a namespace that was deleted; a claim that has not
// changed for claimPatience is that of a run which died.
const (
	renewEvery    = 2 * time.Second
	claimPatience = 15 * time.Second
)

// claim is who a run is, and what it has.
type claim struct {
	holder string
	since  metav1.MicroTime
	// uid is that of the claimed namespace; empty: none. Another namespace of its
	// name is another run's.
	uid types.UID
}

func newClaim() claim {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown machine"
	}
	return claim{
		holder: fmt.Sprintf("process %d on %s", os.Getpid(), host),
		since:  metav1.NewMicroTime(time.Now().Truncate(time.Microsecond)),
	}
}

// holds reports whether a lease is this run's.
func (c *claim) holds(l *coordinationv1.Lease) bool {
	return l != nil && holderOf(l) == c.holder && l.Spec.AcquireTime != nil && l.Spec.AcquireTime.Equal(&c.since)
}

// holderOf is who has a lease; empty: nobody, it was given up.
func holderOf(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// errFaster says that another run changed what was looked at; to be looked at again.
var errFaster = errors.New("another run was faster")

// Claim implements connectivity.Cluster. The pods of two runs would want the same
// ports of the same nodes: there is one run at a time, whatever its namespace is
// called.
func (c *testCluster) Claim(ctx context.Context, namespace string, say func(string)) (bool, error) {
	for {
		err := c.clear(ctx, namespace, say)
		if err == nil {
			err = c.makeNamespace(ctx, namespace)
		}
		if !errors.Is(err, errFaster) {
			return c.claim.uid != "", err
		}
	}
}

// clear removes what runs left that died, and what the last one kept in namespace.
// A run that goes on is connectivity.ErrBusy.
func (c *testCluster) clear(ctx context.Context, namespace string, say func(string)) error {
	spaces, err := c.client.Core.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "=" + testPart})
	if err != nil {
		return fmt.Errorf("look for the namespaces of other runs: %w", err)
	}
	for i := range spaces.Items {
		ns := &spaces.Items[i]
		if err := c.clearOne(ctx, ns, ns.Name == namespace, say); err != nil {
			return err
		}
	}
	return nil
}

// clearOne is clear for one namespace; wanted is the one that this run wants.
func (c *testCluster) clearOne(ctx context.Context, ns *corev1.Namespace, wanted bool, say func(string)) error {
	if ns.DeletionTimestamp != nil {
		if !wanted {
			return nil
		}
		say("wait for namespace " + ns.Name + " to go: it is on its way out")
		return c.gone(ctx, ns.Name, ns.UID)
	}
	lease, err := c.readLease(ctx, ns.Name)
	if err != nil {
		return err
	}
	if holderOf(lease) == "" && !wanted {
		return nil // kept for a look
	}
	if lease == nil || holderOf(lease) != "" {
		say(fmt.Sprintf("namespace %s is there: see for %s whether its run goes on", ns.Name, c.patience))
		if lease, err = c.over(ctx, ns, lease); err != nil {
			return err
		}
	}
	if err := c.take(ctx, ns.Name, lease); err != nil {
		return err
	}
	if wanted {
		c.claim.uid = ns.UID
	}
	say("remove what an earlier run left in namespace " + ns.Name)
	hold, letGo := context.WithCancel(context.WithoutCancel(ctx))
	var held sync.WaitGroup
	held.Go(func() { _ = c.Hold(hold, ns.Name) }) // it ends when the namespace has gone
	err = c.remove(ctx, ns.Name, ns.UID)
	letGo()
	held.Wait()
	if err == nil {
		c.claim.uid = ""
	}
	return err
}

// over watches a lease (nil: there is none) until it is clear that its run is over,
// and returns it as it was then. Time in which the API server does not answer does not
// count: nobody can renew a lease then.
func (c *testCluster) over(ctx context.Context, ns *corev1.Namespace, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	now := lease
	looks := int(c.patience / pollEvery)
	err := poll(ctx, func(ctx context.Context) (done bool, err error) {
		now, err = c.readLease(ctx, ns.Name)
		looks--
		return looks < 0 || version(now) != version(lease), err
	})
	switch {
	case err != nil:
		return nil, err
	case version(now) == version(lease), now != nil && holderOf(now) == "":
		return now, nil
	case now == nil:
		return nil, errFaster // on its way out
	}
	return nil, fmt.Errorf("%w in namespace %s, begun %s ago by %s: wait for its end, or end it with: kubectl delete namespace %s; if that process is gone, this command removes what it left %s after its end",
		connectivity.ErrBusy, ns.Name, max(0, time.Since(ns.CreationTimestamp.Time)).Round(time.Second), holderOf(now), ns.Name, c.patience)
}

func version(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return string(l.UID) + " " + l.ResourceVersion
}

// makeNamespace makes the namespace with this run's claim in it.
func (c *testCluster) makeNamespace(ctx context.Context, namespace string) error {
	namespaces := c.client.Core.CoreV1().Namespaces()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{
		partOfLabel: testPart,
		// Host pods and raw sockets are what is being tested.
		"pod-security.kubernetes.io/enforce": "privileged",
	}}}
	// An interruption waits for the answer: what nobody knows of would be left.
	answered, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	made, err := namespaces.Create(answered, ns, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		there, err := namespaces.Get(ctx, namespace, metav1.GetOptions{})
		switch {
		case err == nil && there.Labels[partOfLabel] != testPart:
			return fmt.Errorf("namespace %s exists and was not made by this test: give another with --namespace", namespace)
		case err == nil || apierrors.IsNotFound(err):
			return errFaster
		}
		return fmt.Errorf("look for namespace %s: %w", namespace, err)
	}
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	c.claim.uid = made.UID
	lease, err := c.readLease(answered, namespace)
	if err == nil {
		err = c.take(answered, namespace, lease)
	}
	if errors.Is(err, errFaster) {
		c.claim.uid = ""
	}
	return err
}

// readLease returns nil where there is none.
func (c *testCluster) readLease(ctx context.Context, namespace string) (*coordinationv1.Lease, error) {
	lease, err := c.client.Core.CoordinationV1().Leases(namespace).Get(ctx, claimLease, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look who holds namespace %s: %w", namespace, err)
	}
	return lease, nil
}

// take puts this run's name into the lease that was read, or makes it where there
// was none; errFaster when it is not as it was read any more.
func (c *testCluster) take(ctx context.Context, namespace string, lease *coordinationv1.Lease) error {
	leases := c.client.Core.CoordinationV1().Leases(namespace)
	seconds := int32(claimPatience / time.Second)
	now := metav1.NowMicro()
	spec := coordinationv1.LeaseSpec{HolderIdentity: &c.claim.holder, AcquireTime: &c.claim.since, RenewTime: &now, LeaseDurationSeconds: &seconds}
	var err error
	if lease == nil {
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: claimLease, Labels: map[string]string{partOfLabel: testPart}}, Spec: spec}, metav1.CreateOptions{})
	} else {
		lease = lease.DeepCopy()
		lease.Spec = spec
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return errFaster
	}
	return fmt.Errorf("claim namespace %s: %w", namespace, err)
}

// Hold implements connectivity.Cluster.
func (c *testCluster) Hold(ctx context.Context, namespace string) error {
	again := time.NewTicker(c.renewEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			c.letGo(ctx, namespace)
			return nil
		case <-again.C:
		}
		// A server that does not answer is asked again.
		if err := c.renew(ctx, namespace); errors.Is(err, connectivity.ErrTaken) {
			return err
		}
	}
}

// renew says in the lease that this run goes on.
func (c *testCluster) renew(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	// Its pods go only some seconds after a namespace was told to: nothing that becomes
	// of them is to be blamed on the network.
	ns, err := c.client.Core.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp != nil {
		return fmt.Errorf("%w: namespace %s is being removed by somebody else", connectivity.ErrTaken, namespace)
	}
	lease, err := c.readLease(ctx, namespace)
	switch {
	case err != nil:
		return err
	case lease == nil:
		return fmt.Errorf("%w: namespace %s is not its own any more, its lease was removed by somebody else", connectivity.ErrTaken, namespace)
	case !c.claim.holds(lease):
		return fmt.Errorf("%w: namespace %s has gone to %s, after no sign of this run for %s", connectivity.ErrTaken, namespace, holderOf(lease), c.patience)
	}
	now := metav1.NowMicro()
	lease.Spec.RenewTime = &now
	_, err = c.client.Core.CoordinationV1().Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// letGo gives the lease up, where it is still there: the next run need not wait.
func (c *testCluster) letGo(ctx context.Context, namespace string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	lease, err := c.readLease(ctx, namespace)
	if err != nil || !c.claim.holds(lease) {
		return
	}
	nobody, soon := "", int32(1)
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &nobody, &soon
	// Where this does not arrive, the next run waits out its patience.
	_, _ = c.client.Core.CoordinationV1().Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{})
}
