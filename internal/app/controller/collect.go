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

// notifier is where the collector's events go: onto the controller's own pod.
type notifier interface {
	PodWarning(ref kube.PodRef, uid, reason, message string)
	PodNormal(ref kube.PodRef, uid, reason, message string)
}

// How long a pass may take to read everything, and one deletion to be known done: a
// call that never ends is one for the next pass, not the end of all passes.
const (
	lookWithin   = 2 * time.Minute
	deleteWithin = time.Minute
)

// collector deletes leaked interfaces, one pass at a time.
type collector struct {
	o       Options
	events  notifier
	seen    map[vpc.ENIID]leak.Sighting
	metrics collectorMetrics

	lookWithin, deleteWithin time.Duration
}

type collectorMetrics struct {
	leaked  *prometheus.GaugeVec
	deleted prometheus.Counter
	failed  prometheus.Counter
	halted  prometheus.Gauge
	passes  *prometheus.HistogramVec
}

func newCollector(o Options, events notifier) (*collector, error) {
	c := &collector{o: o, events: events, lookWithin: lookWithin, deleteWithin: deleteWithin, metrics: collectorMetrics{
		leaked: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trunkline_controller_leaked_interfaces",
			Help: "Interfaces of this cluster that nobody owns, by state: confirmed or waiting.",
		}, []string{"state"}),
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trunkline_controller_deleted_interfaces_total", Help: "Leaked interfaces that were deleted.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trunkline_controller_delete_failures_total", Help: "Leaked interfaces that EC2 did not delete.",
		}),
		halted: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "trunkline_controller_collector_halted", Help: "1 when the last pass wanted more than it may and deleted nothing.",
		}),
		passes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "trunkline_controller_collector_pass_seconds", Help: "Time of a pass, by result: done, incomplete or failed.",
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

// pass looks once and deletes what is confirmed. What could not be read is no
// reason to forget: the sightings stay for the next pass.
func (c *collector) pass(ctx context.Context, now time.Time) (leak.Decision, error) {
	start := time.Now()
	in, freeze, why, err := c.look(ctx, now)
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
		c.warn("CollectorHalted", d.Halt+"; nothing is deleted until fewer do, or until an operator deletes them")
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

// look reads everything a decision needs. On an error the input is marked as
// incomplete.
func (c *collector) look(ctx context.Context, now time.Time) (leak.Input, trunkline.Freeze, string, error) {
	in := leak.Input{Now: now, Policy: c.o.Policy, Seen: c.seen}
	ctx, cancel := context.WithTimeout(ctx, c.lookWithin)
	defer cancel()
	// Reports first: what a node disowns must be older than what EC2 then says.
	networks, brakes, err := kube.Reports(ctx, c.o.Client)
	if err != nil {
		return in, trunkline.FreezeAll, "", err
	}
	freeze, why := kube.Strictest(brakes, "")
	if in.Interfaces, err = c.o.EC2.Interfaces(ctx, c.o.Cluster); err != nil {
		return in, freeze, why, err
	}
	if in.Instances, err = c.o.EC2.Instances(ctx, owners(in.Interfaces)); err != nil {
		return in, freeze, why, err
	}
	for i := range networks {
		in.Reports = append(in.Reports, reportOf(&networks[i]))
	}
	in.Complete = true
	return in, freeze, why, nil
}

func reportOf(n *trunkline.NodeNetwork) leak.Report {
	r := leak.Report{Instance: vpc.InstanceID(n.Status.InstanceID), At: n.Status.ObservedAt.Time, Owns: map[vpc.ENIID]bool{}}
	for _, i := range n.Status.Interfaces {
		r.Owns[vpc.ENIID(i.ID)] = true
	}
	return r
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

// delete deletes one interface. What becomes of one that takes too long the next
// pass sees for itself.
func (c *collector) delete(ctx context.Context, id vpc.ENIID) error {
	ctx, cancel := context.WithTimeout(ctx, c.deleteWithin)
	defer cancel()
	return c.o.EC2.Delete(ctx, id)
}

func (c *collector) own() kube.PodRef {
	return kube.PodRef{Namespace: c.o.Namespace, Name: c.o.PodName}
}

func (c *collector) warn(reason, message string) {
	c.events.PodWarning(c.own(), "", reason, message)
}
