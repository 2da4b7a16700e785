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

// claimLease is the name of the Lease that a run renews in its namespace. Other runs
// watch for changes of the Lease and ignore the times in it, because clocks differ.
const claimLease = "connectivity-test"

// renewEvery is the interval of renewals. It is well below the five seconds after which
// Kubernetes starts to delete the objects of a deleted namespace. A lease that has not
// changed for claimExpiry belongs to a run that crashed.
const (
	renewEvery  = 2 * time.Second
	claimExpiry = 15 * time.Second
)

// claim is a run's identity and its claimed namespace.
type claim struct {
	holder string
	since  metav1.MicroTime
	// uid of the claimed namespace; empty is none. A namespace of the same name with
	// another UID belongs to another run.
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

// holds reports whether this run holds the lease.
func (c *claim) holds(l *coordinationv1.Lease) bool {
	return l != nil && holderOf(l) == c.holder && l.Spec.AcquireTime != nil && l.Spec.AcquireTime.Equal(&c.since)
}

// holderOf returns the holder of a lease; empty if it was released.
func holderOf(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// errConflict: another run changed an object between our read and our write. The claim
// is then tried again from the start.
var errConflict = errors.New("another run changed the claim at the same time")

// Claim implements connectivity.Cluster. One run at a time is allowed in a cluster, also
// in different namespaces: the pods of two runs would use the same host ports.
func (c *testCluster) Claim(ctx context.Context, namespace string, step func(string)) (bool, error) {
	for {
		err := c.clear(ctx, namespace, step)
		if err == nil {
			err = c.createNamespace(ctx, namespace)
		}
		if !errors.Is(err, errConflict) {
			return c.claim.uid != "", err
		}
	}
}

// clear deletes the namespaces of crashed runs, and namespace itself if a run kept it.
// If another run is active it returns connectivity.ErrBusy.
func (c *testCluster) clear(ctx context.Context, namespace string, step func(string)) error {
	list, err := c.client.Core.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: partOfLabel + "=" + testPart})
	if err != nil {
		return fmt.Errorf("list the namespaces of other runs: %w", err)
	}
	for i := range list.Items {
		ns := &list.Items[i]
		if err := c.clearNamespace(ctx, ns, ns.Name == namespace, step); err != nil {
			return err
		}
	}
	return nil
}

// clearNamespace is clear for one namespace; wanted if it is the one to claim.
func (c *testCluster) clearNamespace(ctx context.Context, ns *corev1.Namespace, wanted bool, step func(string)) error {
	if ns.DeletionTimestamp != nil {
		if !wanted {
			return nil
		}
		step("wait until namespace " + ns.Name + " is deleted")
		return c.waitDeleted(ctx, ns.Name, ns.UID)
	}
	lease, err := c.readLease(ctx, ns.Name)
	if err != nil {
		return err
	}
	if holderOf(lease) == "" && !wanted {
		return nil // a run kept it on request (Options.Keep)
	}
	if lease == nil || holderOf(lease) != "" {
		step(fmt.Sprintf("namespace %s exists: wait up to %s to see whether its run is active", ns.Name, c.expiry))
		if lease, err = c.waitExpired(ctx, ns, lease); err != nil {
			return err
		}
	}
	if err := c.acquire(ctx, ns.Name, lease); err != nil {
		return err
	}
	if wanted {
		c.claim.uid = ns.UID
	}
	step("remove namespace " + ns.Name + " of an earlier run")
	holding, stop := context.WithCancel(context.WithoutCancel(ctx))
	var held sync.WaitGroup
	held.Go(func() { _ = c.Hold(holding, ns.Name) }) // returns ErrTaken once the namespace is deleted
	err = c.remove(ctx, ns.Name, ns.UID)
	stop()
	held.Wait()
	if err == nil {
		c.claim.uid = ""
	}
	return err
}

// waitExpired waits until the run that holds a lease (nil if there is none) has crashed
// or released it, and returns the lease as last read. While the API server does not
// answer, no run can renew its lease, so expiry counts successful reads instead of time.
func (c *testCluster) waitExpired(ctx context.Context, ns *corev1.Namespace, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	now := lease
	reads := int(c.expiry / pollEvery)
	err := poll(ctx, func(ctx context.Context) (done bool, err error) {
		now, err = c.readLease(ctx, ns.Name)
		reads--
		return reads < 0 || version(now) != version(lease), err
	})
	switch {
	case err != nil:
		return nil, err
	case version(now) == version(lease), now != nil && holderOf(now) == "":
		return now, nil
	case now == nil:
		return nil, errConflict // the namespace is being deleted
	}
	return nil, fmt.Errorf("%w in namespace %s, started %s ago by %s: wait until it ends, or end it with: kubectl delete namespace %s; if that process crashed, run this command again after %s and it cleans up",
		connectivity.ErrBusy, ns.Name, max(0, time.Since(ns.CreationTimestamp.Time)).Round(time.Second), holderOf(now), ns.Name, c.expiry)
}

func version(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return string(l.UID) + " " + l.ResourceVersion
}

// createNamespace creates the namespace with this run's claim.
func (c *testCluster) createNamespace(ctx context.Context, namespace string) error {
	namespaces := c.client.Core.CoreV1().Namespaces()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{
		partOfLabel: testPart,
		// The test needs host pods and raw sockets.
		"pod-security.kubernetes.io/enforce": "privileged",
	}}}
	// Not interruptible: otherwise a namespace would be left behind if its creation was
	// not confirmed.
	uninterrupted, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	created, err := namespaces.Create(uninterrupted, ns, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		existing, err := namespaces.Get(ctx, namespace, metav1.GetOptions{})
		switch {
		case err == nil && existing.Labels[partOfLabel] != testPart:
			return fmt.Errorf("namespace %s exists and was not created by this test: choose another one with --namespace", namespace)
		case err == nil || apierrors.IsNotFound(err):
			return errConflict
		}
		return fmt.Errorf("get namespace %s: %w", namespace, err)
	}
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	c.claim.uid = created.UID
	lease, err := c.readLease(uninterrupted, namespace)
	if err == nil {
		err = c.acquire(uninterrupted, namespace, lease)
	}
	if errors.Is(err, errConflict) {
		c.claim.uid = ""
	}
	return err
}

// readLease returns the claim's lease, or nil if it does not exist.
func (c *testCluster) readLease(ctx context.Context, namespace string) (*coordinationv1.Lease, error) {
	lease, err := c.client.Core.CoordinationV1().Leases(namespace).Get(ctx, claimLease, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the lease of namespace %s: %w", namespace, err)
	}
	return lease, nil
}

// acquire makes this run the holder of lease, or creates the lease if it is nil. It
// returns errConflict if the lease has changed since it was read.
func (c *testCluster) acquire(ctx context.Context, namespace string, lease *coordinationv1.Lease) error {
	leases := c.client.Core.CoordinationV1().Leases(namespace)
	seconds := int32(claimExpiry / time.Second)
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
		return errConflict
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
			c.release(ctx, namespace)
			return nil
		case <-again.C:
		}
		// Other errors are those of the API server; the next renewal tries again.
		if err := c.renew(ctx, namespace); errors.Is(err, connectivity.ErrTaken) {
			return err
		}
	}
}

// renew updates the lease to show that this run is active.
func (c *testCluster) renew(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	// Stop as soon as the namespace is being deleted. Its pods are deleted some seconds
	// later, and cases would then fail for another reason than the network.
	ns, err := c.client.Core.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp != nil {
		return fmt.Errorf("%w: namespace %s is being deleted by another client", connectivity.ErrTaken, namespace)
	}
	lease, err := c.readLease(ctx, namespace)
	switch {
	case err != nil:
		return err
	case lease == nil:
		return fmt.Errorf("%w: the lease of namespace %s was deleted by another client", connectivity.ErrTaken, namespace)
	case !c.claim.holds(lease):
		return fmt.Errorf("%w: namespace %s was claimed by %s, because this run had not renewed its lease for %s", connectivity.ErrTaken, namespace, holderOf(lease), c.expiry)
	}
	now := metav1.NowMicro()
	lease.Spec.RenewTime = &now
	_, err = c.client.Core.CoordinationV1().Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// release releases the lease if this run holds it, so that the next run need not wait
// for its expiry.
func (c *testCluster) release(ctx context.Context, namespace string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	lease, err := c.readLease(ctx, namespace)
	if err != nil || !c.claim.holds(lease) {
		return
	}
	noHolder, soon := "", int32(1)
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &noHolder, &soon
	// If this fails, the next run waits for the expiry.
	_, _ = c.client.Core.CoordinationV1().Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{})
}
