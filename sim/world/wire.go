package world

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/dns"
	"github.com/trunkline/trunkline/sim/fabric"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/imds"
)

// Addresses of the platform.
const (
	// APIAddress is the address of EC2 and STS inside the VPC, on TCP port 80
	// (TEST-NET-2 of RFC 5737).
	APIAddress = "198.51.100.2"
	// OutsideAddress is the outside host (TEST-NET-3 of RFC 5737).
	OutsideAddress = "203.0.113.10"
)

// resync is the interval between full checks of the fabric, which repair external
// changes.
const resync = 5 * time.Second

// want returns the topology that the account and the faults request now, and the end
// of the next injected attach delay, if one is pending.
func (w *World) want(s *cloud.State, plan faults.Plan) (fabric.State, time.Time) {
	f := topology(s)
	f.Services = w.services(s)
	if s.Gateway != "" {
		f.Internet = &fabric.Internet{Hosts: w.config.Outside}
	}
	var next time.Time
	now := w.config.Now()
	f.Ports = slices.DeleteFunc(f.Ports, func(p fabric.Port) bool {
		due := attachDue(s.Interfaces[p.ID].Attachment, plan)
		if !due.After(now) {
			return false
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
		return true
	})
	for n := range f.Ports {
		f.Ports[n].Down = slices.Contains(plan.LinkDown, string(f.Ports[n].ID))
	}
	return f, next
}

// attachDue is when an attachment may be added to the fabric. Faults do not delay
// primary interfaces, which machines have at their start.
func attachDue(a *cloud.Attachment, plan faults.Plan) time.Time {
	if a.Status != cloud.Attaching || a.DeviceIndex == 0 || a.Host != "" {
		return time.Time{}
	}
	return a.Since.Add(time.Duration(plan.AttachTime))
}

// services are the platform's own addresses inside the VPC.
func (w *World) services(s *cloud.State) []fabric.Service {
	resolver := fabric.Service{Address: vpc.Resolver(s.VPC.CIDRs[0]), TCP: []uint16{53}, UDP: []uint16{53}}
	if w.config.NoPlatform {
		return []fabric.Service{resolver}
	}
	return []fabric.Service{
		{Address: vpc.MetadataV4, TCP: []uint16{80}},
		{Address: vpc.MetadataV6, TCP: []uint16{80}},
		{Address: netip.MustParseAddr(APIAddress), TCP: []uint16{80}},
		resolver,
	}
}

// listen starts the platform's servers inside the fabric's namespace.
func (w *World) listen(run context.Context) error {
	if !w.config.NoPlatform {
		if err := listenPlatform(run, w); err != nil {
			return err
		}
	}
	ns := w.config.Namespace
	at := netip.AddrPortFrom(vpc.Resolver(w.State().VPC.CIDRs[0]), 53).String()
	tcp, err := fabric.ListenIn(ns, "tcp4", at)
	if err != nil {
		return err
	}
	udp, err := fabric.ListenPacketIn(ns, "udp4", at)
	if err != nil {
		return errors.Join(err, tcp.Close())
	}
	resolver := dns.New(dns.Chain{w.staticNames(), names{w}}, w.log)
	w.run.Go(func() error { return resolver.Serve(run, udp, tcp) })
	return nil
}

// listenPlatform starts EC2, STS and instance metadata inside the fabric's namespace.
func listenPlatform(run context.Context, w *World) error {
	ns := w.config.Namespace
	api, err := fabric.ListenIn(ns, "tcp4", APIAddress+":80")
	if err != nil {
		return err
	}
	w.serve(run, api, w.api)
	metadata := imds.New(metadata{w}, imds.Config{Log: w.log, Now: w.config.Now})
	for network, a := range map[string]netip.Addr{"tcp4": vpc.MetadataV4, "tcp6": vpc.MetadataV6} {
		l, err := fabric.ListenIn(ns, network, netip.AddrPortFrom(a, 80).String())
		if err != nil {
			return err
		}
		w.run.Go(func() error { return metadata.Serve(run, l) })
	}
	return nil
}

// followAccount applies the account to the fabric until ctx ends.
func (w *World) followAccount(ctx context.Context) error {
	changed, stop := w.cloud.Watch()
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
func (w *World) pause() time.Duration {
	_, next := w.want(w.State(), w.faults.Plan())
	if next.IsZero() {
		return resync
	}
	return min(resync, max(0, next.Sub(w.config.Now())))
}

// report logs what could not be applied. The namespace of a guest that is switched
// off does not exist, which is expected.
func (w *World) report(err error) {
	for id, cause := range fabric.PortErrors(err) {
		if errors.Is(cause, fabric.ErrGuestMissing) {
			w.log.Debug("guest is off", "eni", string(id))
			continue
		}
		w.log.Warn("interface could not be added to the fabric, retrying", "eni", string(id), "err", cause)
	}
	if !onlyPorts(err) {
		w.log.Error("the account could not be applied to the fabric", "err", err)
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
func (w *World) sync(ctx context.Context) error {
	if w.fabric == nil {
		return nil
	}
	select {
	case <-w.turn:
	case <-ctx.Done():
		return fmt.Errorf("apply the account to the fabric: %w", ctx.Err())
	}
	defer func() { w.turn <- struct{}{} }()
	s := w.State()
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
func (w *World) complete(s *cloud.State, want fabric.State, failed map[vpc.ENIID]error) {
	plugged := map[vpc.ENIID]bool{}
	for _, p := range want.Ports {
		plugged[p.ID] = failed[p.ID] == nil
	}
	for _, i := range cloud.Sorted(s.Interfaces) {
		var err error
		switch a := i.Attachment; {
		case a == nil:
		case a.Status == cloud.Attaching && plugged[i.ID]:
			err = w.cloud.FinishAttach(a.ID)
		case a.Status == cloud.Detaching:
			err = w.cloud.FinishDetach(a.ID)
		}
		if err != nil {
			w.log.Error("attachment cannot be completed", "eni", string(i.ID), "err", err)
		}
	}
}

// Plug moves the links of an instance, or of the named Host, into its namespace now,
// which may be a new one. Its error concerns that machine alone.
func (w *World) Plug(ctx context.Context, id vpc.InstanceID) error {
	err := w.sync(ctx)
	if err == nil {
		return nil
	}
	if !onlyPorts(err) {
		return fmt.Errorf("plug %s: %w", id, err)
	}
	failed := fabric.PortErrors(err)
	for _, i := range w.State().InterfacesOf(id) {
		if cause := failed[i.ID]; cause != nil {
			return fmt.Errorf("plug %s into %s: %w", i.ID, id, cause)
		}
	}
	return nil
}
