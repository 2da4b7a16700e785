package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/leak"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// notifier records the collector's events on the controller's own pod.
type notifier interface {
	PodWarning(ref kube.PodRef, uid, reason, message string)
	PodNormal(ref kube.PodRef, uid, reason, message string)
}

// Timeouts of a pass: for reading the inventory, and for one deletion. A call that
// hangs fails its pass, and the next pass tries again.
const (
	readTimeout   = 2 * time.Minute
	deleteTimeout = time.Minute
)

// collector deletes leaked interfaces, one pass at a time.
type collector struct {
	o       Options
	events  notifier
	seen    map[vpc.ENIID]leak.Observation
	metrics collectorMetrics

	readTimeout, deleteTimeout time.Duration
}

type collectorMetrics struct {
	leaked  *prometheus.GaugeVec
	deleted prometheus.Counter
	failed  prometheus.Counter
	halted  prometheus.Gauge
	passes  *prometheus.HistogramVec
}

func newCollector(o Options, events notifier) (*collector, error) {
	c := &collector{o: o, events: events, readTimeout: readTimeout, deleteTimeout: deleteTimeout, metrics: collectorMetrics{
		leaked: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trunkline_controller_leaked_interfaces",
			Help: "Leaked interfaces of this cluster, by state: confirmed or waiting.",
		}, []string{"state"}),
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trunkline_controller_deleted_interfaces_total", Help: "Leaked interfaces that were deleted.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trunkline_controller_delete_failures_total", Help: "Failed deletions of leaked interfaces.",
		}),
		halted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "trunkline_controller_collector_halted", Help: "1 if the last pass found too large a share of leaked interfaces and deleted nothing.",
		}),
		passes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "trunkline_controller_collector_pass_seconds", Help: "Duration of a pass, by result: done, incomplete or failed.",
			Buckets: []float64{.1, .5, 1, 5, 15, 60, 300},
		}, []string{"result"}),
	}}
	m := c.metrics
	for _, part := range []prometheus.Collector{m.leaked, m.deleted, m.failed, m.halted, m.passes} {
		if err := o.Registry.Register(part); err != nil {
			return nil, fmt.Errorf("register the collector's metrics: %w", err)
		}
	}
	return c, nil
}

// pass reads the inventory once and deletes confirmed leaks. If the inventory cannot be
// read, earlier observations are kept for the next pass.
func (c *collector) pass(ctx context.Context, now time.Time) (leak.Decision, error) {
	start := time.Now()
	in, freeze, why, err := c.read(ctx, now)
	d := leak.Plan(in)
	c.seen = d.Seen
	result := "done"
	if err != nil {
		result = "incomplete"
	}
	defer func() { c.metrics.passes.WithLabelValues(result).Observe(time.Since(start).Seconds()) }()
	if err != nil {
		return d, err
	}
	c.metrics.leaked.WithLabelValues("confirmed").Set(float64(len(d.Delete)))
	c.metrics.leaked.WithLabelValues("waiting").Set(float64(len(d.Wait)))
	c.metrics.halted.Set(0)
	if d.Alarm {
		c.metrics.halted.Set(1)
		c.o.Log.Error("collector halted", "why", d.Halt)
		c.warn("CollectorHalted", d.Halt+"; no interface is deleted until the share is smaller: delete the leaked ones by hand or correct their tags")
		return d, nil
	}
	for _, v := range d.Wait {
		c.o.Log.Debug("interface looks leaked", "eni", v.ID, "why", v.Why)
	}
	if len(d.Delete) > 0 && !freeze.AllowsRelease() {
		c.o.Log.Info("leaked interfaces kept by a brake", "count", len(d.Delete), "brake", why)
		return d, nil
	}
	err = c.deleteAll(ctx, d.Delete)
	if err != nil {
		result = "failed"
	}
	return d, err
}

// read reads the inputs of a decision: reports, nodes, brakes, interfaces and instances. On
// an error the returned input is incomplete.
func (c *collector) read(ctx context.Context, now time.Time) (leak.Input, trunkline.Freeze, string, error) {
	in := leak.Input{Now: now, Policy: c.o.Policy, Seen: c.seen}
	ctx, cancel := context.WithTimeout(ctx, c.readTimeout)
	defer cancel()
	// Reports are read before EC2, so that an interface released in between is not
	// taken for one that its node does not report.
	networks, brakes, err := kube.Reports(ctx, c.o.Client)
	if err != nil {
		return in, trunkline.FreezeAll, "", err
	}
	freeze, why := kube.Strictest(brakes, "")
	nodes, err := kube.Nodes(ctx, c.o.Client)
	if err != nil {
		return in, freeze, why, err
	}
	if in.Interfaces, err = c.o.EC2.Interfaces(ctx, c.o.Cluster); err != nil {
		return in, freeze, why, err
	}
	if in.Instances, err = c.o.EC2.Instances(ctx, owners(in.Interfaces)); err != nil {
		return in, freeze, why, err
	}
	in.Reports = c.reports(networks, instancesOf(nodes))
	in.Complete = true
	return in, freeze, why, nil
}

// reports returns what the nodes report of their own instances. A report is about the
// instance of its Node: the agent of another node cannot write it, and cannot disown the
// interfaces of another instance by naming it. A report that names another instance than
// its Node is that of a replaced node, or false; it is ignored, which deletes nothing.
func (c *collector) reports(networks []trunkline.NodeNetwork, of map[string]vpc.InstanceID) []leak.Report {
	var out []leak.Report
	for _, n := range networks {
		instance, named := of[n.Name], vpc.InstanceID(n.Status.InstanceID)
		if instance == "" || named != instance {
			c.o.Log.Warn("report ignored: it names another instance than its Node", "node", n.Name, "report", string(named), "instance", string(instance))
			continue
		}
		r := leak.Report{Instance: instance, At: n.Status.ObservedAt.Time, Owns: map[vpc.ENIID]bool{}}
		for _, i := range n.Status.Interfaces {
			r.Owns[vpc.ENIID(i.ID)] = true
		}
		out = append(out, r)
	}
	return out
}

func (c *collector) deleteAll(ctx context.Context, list []leak.Verdict) error {
	var errs []error
	for _, v := range list {
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		if c.o.DryRun {
			c.o.Log.Info("would delete leaked interface", "eni", v.ID, "why", v.Why)
			continue
		}
		if err := c.delete(ctx, v.ID); err != nil {
			c.metrics.failed.Inc()
			errs = append(errs, fmt.Errorf("delete leaked %s: %w", v.ID, err))
			continue
		}
		c.metrics.deleted.Inc()
		delete(c.seen, v.ID)
		c.o.Log.Info("leaked interface deleted", "eni", v.ID, "why", v.Why)
		c.events.PodNormal(c.own(), "", "LeakedInterfaceDeleted", fmt.Sprintf("%s was deleted: %s", v.ID, v.Why))
	}
	return errors.Join(errs...)
}

// delete deletes one interface. After a timeout, the next pass finds out whether the
// interface still exists.
func (c *collector) delete(ctx context.Context, id vpc.ENIID) error {
	ctx, cancel := context.WithTimeout(ctx, c.deleteTimeout)
	defer cancel()
	return c.o.EC2.Delete(ctx, id)
}

func (c *collector) own() kube.PodRef {
	return kube.PodRef{Namespace: c.o.Namespace, Name: c.o.PodName}
}

func (c *collector) warn(reason, message string) {
	c.events.PodWarning(c.own(), "", reason, message)
}
