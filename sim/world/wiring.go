package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/fabric"
	"github.com/trunkline/trunkline/sim/faults"
)

// resync is the interval between full checks of the fabric, which repair external
// changes.
const resync = 5 * time.Second

// wiring keeps the fabric equal to the account, and completes attachments and
// detachments when their link is added or removed.
type wiring struct {
	account *cloud.Cloud
	faults  *faults.Injector
	fabric  *fabric.Fabric
	config  Config
	turn    chan struct{} // a semaphore of one: serialises sync
}

// newWiring opens the fabric, without links yet.
func newWiring(account *cloud.Cloud, injector *faults.Injector, c Config) (*wiring, error) {
	f, err := fabric.Open(c.Namespace, fabric.Options{Internet: c.Internet, Log: c.Log})
	if err != nil {
		return nil, err
	}
	w := &wiring{account: account, faults: injector, fabric: f, config: c, turn: make(chan struct{}, 1)}
	w.turn <- struct{}{}
	return w, nil
}

// want returns the topology that the account and the faults request now, and when the
// next attachment or detachment is due, if one is pending.
func (w *wiring) want(s *cloud.State, plan faults.Plan) (fabric.State, time.Time) {
	f := topology(s)
	f.Services = services(s, w.config)
	if s.Gateway != "" {
		f.Internet = &fabric.Internet{Hosts: w.config.Outside}
	}
	var next time.Time
	now := w.config.Now()
	f.Ports = slices.DeleteFunc(f.Ports, func(p fabric.Port) bool {
		due := attachDue(s.Interfaces[p.Key.ENI].Attachment, plan)
		if !due.After(now) {
			return false
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
		return true
	})
	for _, i := range s.Interfaces {
		if a := i.Attachment; a != nil && a.Status == cloud.Detaching && a.Until.After(now) && (next.IsZero() || a.Until.Before(next)) {
			next = a.Until
		}
	}
	for n := range f.Ports {
		f.Ports[n].Down = slices.Contains(plan.LinkDown, string(f.Ports[n].ID))
	}
	return f, next
}

// attachDue is when an attachment may be added to the fabric. Faults do not delay
// primary interfaces, which machines have at their start.
func attachDue(a *cloud.Attachment, plan faults.Plan) time.Time {
	if a.Status != cloud.Attaching || a.Primary() || a.Host != "" {
		return time.Time{}
	}
	return a.Since.Add(time.Duration(plan.AttachTime))
}

// follow applies the account to the fabric until ctx ends.
func (w *wiring) follow(ctx context.Context) error {
	changed, stop := w.account.Watch()
	defer stop()
	planned, stopPlan := w.faults.Watch()
	defer stopPlan()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-planned:
		case <-timer.C:
		}
		if err := w.sync(ctx); err != nil && ctx.Err() == nil {
			w.report(err)
		}
		timer.Reset(w.pause())
	}
}

// pause is how long the fabric needs no check if nothing changes.
func (w *wiring) pause() time.Duration {
	_, next := w.want(w.account.State(), w.faults.Plan())
	if next.IsZero() {
		return resync
	}
	return min(resync, max(0, next.Sub(w.config.Now())))
}

// report logs what could not be applied. The namespace of a guest that is switched
// off does not exist, which is expected.
func (w *wiring) report(err error) {
	for id, cause := range fabric.PortErrors(err) {
		if errors.Is(cause, fabric.ErrGuestMissing) || errors.Is(cause, fabric.ErrNoTrunk) {
			w.config.Log.Debug("guest is off", "eni", string(id))
			continue
		}
		w.config.Log.Warn("interface could not be added to the fabric, retrying", "eni", string(id), "err", cause)
	}
	if !onlyPorts(err) {
		w.config.Log.Error("the account could not be applied to the fabric", "err", err)
	}
}

// onlyPorts reports whether every part of an error concerns a single port.
func onlyPorts(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // walks the tree itself
		for _, e := range joined.Unwrap() {
			if !onlyPorts(e) {
				return false
			}
		}
		return true
	}
	var port *fabric.PortError
	return errors.As(err, &port)
}

// sync applies the account to the fabric once, and then completes attachments and
// detachments. It returns the fabric's error.
func (w *wiring) sync(ctx context.Context) error {
	select {
	case <-w.turn:
	case <-ctx.Done():
		return fmt.Errorf("apply the account to the fabric: %w", ctx.Err())
	}
	defer func() { w.turn <- struct{}{} }()
	s := w.account.State()
	want, _ := w.want(s, w.faults.Plan())
	err := w.fabric.Apply(ctx, want)
	if err != nil && !onlyPorts(err) {
		return err
	}
	w.complete(s, want, fabric.PortErrors(err))
	return err
}

// complete finishes attachments with their link in the guest, and detachments with
// their link removed.
func (w *wiring) complete(s *cloud.State, want fabric.State, failed map[vpc.ENIID]error) {
	plugged := map[vpc.ENIID]bool{}
	for _, p := range want.Ports {
		plugged[p.ID] = failed[p.ID] == nil
	}
	for _, i := range cloud.Sorted(s.Interfaces) {
		var err error
		switch a := i.Attachment; {
		case a == nil:
		case a.Status == cloud.Attaching && plugged[i.ID]:
			err = w.account.FinishAttach(a.ID)
		case a.Status == cloud.Detaching && !w.config.Now().Before(a.Until):
			err = w.account.FinishDetach(a.ID)
		}
		if err != nil {
			w.config.Log.Error("attachment cannot be completed", "eni", string(i.ID), "err", err)
		}
	}
}

// plug moves the links of an instance into its namespace now. Its error concerns that
// machine alone.
func (w *wiring) plug(ctx context.Context, id vpc.InstanceID) error {
	err := w.sync(ctx)
	if err == nil {
		return nil
	}
	if !onlyPorts(err) {
		return fmt.Errorf("plug %s: %w", id, err)
	}
	failed := fabric.PortErrors(err)
	for _, i := range w.account.State().InterfacesOf(id) {
		if cause := failed[i.ID]; cause != nil {
			return fmt.Errorf("plug %s into %s: %w", i.ID, id, cause)
		}
	}
	return nil
}
