package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/edge/kube"
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

// errConflict: another run changed an object between our read and our write. The claim
// is then tried again from the start.
var errConflict = errors.New("another run changed the claim at the same time")

// runLease is the Lease of a run, with its identity as the holder.
type runLease struct {
	client *kube.Client
	holder string
	since  metav1.MicroTime
	// Interval of renewals, and the time without one after which the lease expires.
	renewEvery, expiry time.Duration
}

func newRunLease(c *kube.Client) *runLease {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown machine"
	}
	return &runLease{
		client: c, renewEvery: renewEvery, expiry: claimExpiry,
		holder: fmt.Sprintf("process %d on %s", os.Getpid(), host),
		since:  metav1.NewMicroTime(time.Now().Truncate(time.Microsecond)),
	}
}

// holds reports whether this run holds the lease.
func (r *runLease) holds(l *coordinationv1.Lease) bool {
	return l != nil && holderOf(l) == r.holder && l.Spec.AcquireTime != nil && l.Spec.AcquireTime.Equal(&r.since)
}

// holderOf returns the holder of a lease; empty if it was released.
func holderOf(l *coordinationv1.Lease) string {
	if l == nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// read returns the lease of a namespace, or nil if it does not exist.
func (r *runLease) read(ctx context.Context, namespace string) (*coordinationv1.Lease, error) {
	lease, err := r.client.Core.CoordinationV1().Leases(namespace).Get(ctx, claimLease, metav1.GetOptions{})
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
func (r *runLease) acquire(ctx context.Context, namespace string, lease *coordinationv1.Lease) error {
	leases := r.client.Core.CoordinationV1().Leases(namespace)
	seconds := int32(claimExpiry / time.Second)
	now := metav1.NowMicro()
	spec := coordinationv1.LeaseSpec{HolderIdentity: &r.holder, AcquireTime: &r.since, RenewTime: &now, LeaseDurationSeconds: &seconds}
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

// hold renews the lease until ctx ends, and then releases it. It returns ErrTaken when the
// run no longer owns the namespace.
func (r *runLease) hold(ctx context.Context, namespace string) error {
	again := time.NewTicker(r.renewEvery)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			r.release(ctx, namespace)
			return nil
		case <-again.C:
		}
		// Other errors are those of the API server; the next renewal tries again.
		if err := r.renew(ctx, namespace); errors.Is(err, connectivity.ErrTaken) {
			return err
		}
	}
}

// renew updates the lease to show that this run is active.
func (r *runLease) renew(ctx context.Context, namespace string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	// Stop as soon as the namespace is being deleted. Its pods are deleted some seconds
	// later, and cases would then fail for another reason than the network.
	ns, err := r.client.Core.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp != nil {
		return fmt.Errorf("%w: namespace %s is being deleted by another client", connectivity.ErrTaken, namespace)
	}
	lease, err := r.read(ctx, namespace)
	switch {
	case err != nil:
		return err
	case lease == nil:
		return fmt.Errorf("%w: the lease of namespace %s was deleted by another client", connectivity.ErrTaken, namespace)
	case !r.holds(lease):
		return fmt.Errorf("%w: namespace %s was claimed by %s, because this run had not renewed its lease for %s", connectivity.ErrTaken, namespace, holderOf(lease), r.expiry)
	}
	now := metav1.NowMicro()
	lease.Spec.RenewTime = &now
	_, err = r.client.Core.CoordinationV1().Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{})
	return err
}

// release releases the lease if this run holds it, so that the next run need not wait
// for its expiry. A renewal that was interrupted may still change the lease meanwhile.
func (r *runLease) release(ctx context.Context, namespace string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	// If this fails, the next run waits for the expiry.
	_ = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease, err := r.read(ctx, namespace)
		if err != nil || !r.holds(lease) {
			return err
		}
		noHolder, soon := "", int32(1)
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &noHolder, &soon
		_, err = r.client.Core.CoordinationV1().Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
}

// waitExpired waits until the run that holds a lease (nil if there is none) has crashed
// or released it, and returns the lease as last read. While the API server does not
// answer, no run can renew its lease, so expiry counts successful reads instead of time.
func (r *runLease) waitExpired(ctx context.Context, ns *corev1.Namespace, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	now := lease
	reads := int(r.expiry / pollEvery)
	err := poll(ctx, func(ctx context.Context) (done bool, err error) {
		now, err = r.read(ctx, ns.Name)
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
		connectivity.ErrBusy, ns.Name, max(0, time.Since(ns.CreationTimestamp.Time)).Round(time.Second), holderOf(now), ns.Name, r.expiry)
}

func version(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return string(l.UID) + " " + l.ResourceVersion
}
