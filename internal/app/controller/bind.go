package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Pauses between two attempts to bind the primary interface of one node, doubling.
const (
	minBindPause = time.Minute
	maxBindPause = 16 * time.Minute
)

// binder tags the primary interface of each node with the id of the instance that EC2
// shows it on. The role of a node may change only interfaces with the tag of its own
// instance, and RunInstances, which creates the primary one, cannot write the id of the
// instance. A node uses its other interfaces until the primary one has its tag.
type binder struct {
	o     Options
	nodes map[vpc.InstanceID]binding
}

// binding is how far one instance is.
type binding struct {
	done  bool
	tries int
	next  time.Time // of the next attempt
}

func newBinder(o Options) *binder { return &binder{o: o, nodes: map[vpc.InstanceID]binding{}} }

// pass binds what is not bound yet. Without a new node it makes no call to EC2.
func (b *binder) pass(ctx context.Context, now time.Time) error {
	_, brakes, err := kube.Reports(ctx, b.o.Client)
	if err != nil {
		return err
	}
	if freeze, _ := kube.Strictest(brakes, ""); freeze == trunkline.FreezeAll {
		return nil
	}
	nodes, err := kube.Nodes(ctx, b.o.Client)
	if err != nil {
		return err
	}
	nodes = slices.DeleteFunc(nodes, neverServed)
	due := b.due(slices.Collect(maps.Values(instancesOf(nodes))), now)
	if len(due) == 0 {
		return nil
	}
	primaries, err := b.o.EC2.Primaries(ctx, due)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range primaries {
		if err := b.bind(ctx, p); err != nil {
			errs = append(errs, err)
			continue
		}
		b.nodes[p.Instance] = binding{done: true}
	}
	return errors.Join(errs...)
}

// computeType is EKS's label of nodes that are not ordinary instances, and neverOn its values
// for those that no agent runs on: the DaemonSet's affinity excludes them. The instances of EKS
// Auto Mode are owned by EKS (EKS user guide, "Learn about Amazon EKS Auto Mode Managed
// instances"), so their interfaces are not for us to tag.
const computeType = "eks.amazonaws.com/compute-type"

func neverOn() []string { return []string{"auto", "fargate", "hybrid"} }

func neverServed(n corev1.Node) bool { return slices.Contains(neverOn(), n.Labels[computeType]) }

// due returns the instances to look at now, sorted, and schedules their next attempt. It
// forgets those that are no longer nodes.
func (b *binder) due(all []vpc.InstanceID, now time.Time) []vpc.InstanceID {
	maps.DeleteFunc(b.nodes, func(id vpc.InstanceID, _ binding) bool { return !slices.Contains(all, id) })
	var out []vpc.InstanceID
	for _, id := range slices.Sorted(slices.Values(all)) {
		n := b.nodes[id]
		if n.done || now.Before(n.next) {
			continue
		}
		n.next = now.Add(min(minBindPause<<min(n.tries, 10), maxBindPause))
		n.tries++
		b.nodes[id] = n
		out = append(out, id)
	}
	return out
}

// bind tags one interface. It does not change the tag of another instance.
func (b *binder) bind(ctx context.Context, p Primary) error {
	switch {
	case p.BoundTo == p.Instance:
		return nil
	case p.BoundTo != "":
		return fmt.Errorf("primary interface %s of %s has the tag %s=%s: correct it by hand, because the instance's role may not change the interface", p.ID, p.Instance, vpc.TagInstanceID, p.BoundTo)
	case b.o.DryRun:
		b.o.Log.Info("would tag primary interface with its instance", "eni", p.ID, "instance", string(p.Instance))
		return nil
	}
	if err := b.o.EC2.Bind(ctx, p.ID, p.Instance); err != nil {
		return fmt.Errorf("tag primary interface %s with its instance %s: %w", p.ID, p.Instance, err)
	}
	b.o.Log.Info("primary interface tagged with its instance", "eni", p.ID, "instance", string(p.Instance))
	return nil
}
