package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

// claim is a run's claim of a namespace, in which the run holds the lease.
type claim struct {
	lease      *runLease
	namespaces namespaces
	uid        types.UID // of the claimed namespace; empty is none
}

func newClaim(c *kube.Client) *claim {
	return &claim{lease: newRunLease(c), namespaces: namespaces{c}}
}

// take creates and claims a namespace, and reports whether it is claimed, also on an
// error. One run at a time is allowed in a cluster, also in different namespaces: the pods
// of two runs would use the same host ports.
func (c *claim) take(ctx context.Context, namespace string, step func(string)) (bool, error) {
	for {
		err := c.clear(ctx, namespace, step)
		if err == nil {
			err = c.create(ctx, namespace)
		}
		if !errors.Is(err, errConflict) {
			return c.uid != "", err
		}
	}
}

// clear deletes the namespaces of crashed runs, and namespace itself if a run kept it.
// If another run is active it returns connectivity.ErrBusy.
func (c *claim) clear(ctx context.Context, namespace string, step func(string)) error {
	list, err := c.namespaces.list(ctx)
	if err != nil {
		return fmt.Errorf("list the namespaces of other runs: %w", err)
	}
	for i := range list {
		ns := &list[i]
		if err := c.clearNamespace(ctx, ns, ns.Name == namespace, step); err != nil {
			return err
		}
	}
	return nil
}

// clearNamespace is clear for one namespace; wanted if it is the one to claim.
func (c *claim) clearNamespace(ctx context.Context, ns *corev1.Namespace, wanted bool, step func(string)) error {
	if ns.DeletionTimestamp != nil {
		if !wanted {
			return nil
		}
		step("wait until namespace " + ns.Name + " is deleted")
		return c.namespaces.waitDeleted(ctx, ns.Name, ns.UID)
	}
	lease, err := c.lease.read(ctx, ns.Name)
	if err != nil {
		return err
	}
	if holderOf(lease) == "" && !wanted {
		return nil // a run kept it on request (Options.Keep)
	}
	if lease == nil || holderOf(lease) != "" {
		step(fmt.Sprintf("namespace %s exists: wait up to %s to see whether its run is active", ns.Name, c.lease.expiry))
		if lease, err = c.lease.waitExpired(ctx, ns, lease); err != nil {
			return err
		}
	}
	if err := c.lease.acquire(ctx, ns.Name, lease); err != nil {
		return err
	}
	if wanted {
		c.uid = ns.UID
	}
	step("remove namespace " + ns.Name + " of an earlier run")
	holding, stop := context.WithCancel(context.WithoutCancel(ctx))
	var held sync.WaitGroup
	held.Go(func() { _ = c.lease.hold(holding, ns.Name) }) // returns ErrTaken once the namespace is deleted
	err = c.namespaces.remove(ctx, ns.Name, ns.UID)
	stop()
	held.Wait()
	if err == nil {
		c.uid = ""
	}
	return err
}

// create creates the namespace with this run's lease.
func (c *claim) create(ctx context.Context, namespace string) error {
	// Not interruptible: otherwise a namespace would be left behind if its creation was
	// not confirmed.
	uninterrupted, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	uid, err := c.namespaces.create(uninterrupted, namespace)
	if err != nil {
		return err
	}
	c.uid = uid
	lease, err := c.lease.read(uninterrupted, namespace)
	if err == nil {
		err = c.lease.acquire(uninterrupted, namespace, lease)
	}
	if errors.Is(err, errConflict) {
		c.uid = ""
	}
	return err
}

// remove deletes the claimed namespace and waits until it is deleted.
func (c *claim) remove(ctx context.Context, namespace string) error {
	return c.namespaces.remove(ctx, namespace, c.uid)
}
