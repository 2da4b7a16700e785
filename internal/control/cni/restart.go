package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/edge/journal"
	"github.com/trunkline/trunkline/internal/edge/link"
)

// AdoptLinks makes endpoints of pods' links that are not in the state because the journal
// was lost. Links that wait to be deleted become endpoints that are being removed, so
// that their addresses are not assigned before they are gone. Call it before the first
// comparison of the kernel, which would delete such links.
func (c *Controller) AdoptLinks(ctx context.Context) error {
	links, err := c.Links.Pods(ctx)
	if err != nil {
		return fmt.Errorf("list the links of pods: %w", err)
	}
	for _, w := range links {
		if _, known := c.State.Endpoint(w.Key); known || w.Half || len(w.Addresses) == 0 {
			continue
		}
		if err := c.adopt(ctx, w); err != nil {
			return fmt.Errorf("adopt %s: %w", w.Link, err)
		}
	}
	return nil
}

// podOfLink is the pod of the node that a link is named after; zero: none that is known. On a branch in
// strict mode it has a prefix of its own.
func (c *Controller) podOfLink(key endpoint.Key, link string) (pod endpoint.Pod) {
	for _, p := range c.Pods.Pods() {
		known := endpoint.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
		for _, prefix := range []string{c.LinkPrefix, endpoint.StrictLinkPrefix} {
			if endpoint.LinkNameOf(prefix, key, known) == link {
				pod = known
			}
		}
	}
	return pod
}

// identify names the pods of endpoints that were adopted before the node knew its pods: a policy judges an
// endpoint by its pod. The watch of the pods must have synced.
func (c collector) identify() error {
	for _, e := range c.State.Endpoints() {
		if e.Pod != (endpoint.Pod{}) || e.Stage != endpoint.Ready {
			continue
		}
		pod := c.podOfLink(e.Key, e.Link)
		if pod == (endpoint.Pod{}) {
			continue
		}
		_, err := c.State.Update(func(tx *state.Tx) error {
			now, ok := tx.Endpoint(e.Key)
			if !ok || now.ID != e.ID || now.Generation != e.Generation {
				return nil
			}
			return tx.Put(now.Identify(pod))
		})
		if err != nil {
			return fmt.Errorf("name the pod of %s: %w", e.Link, err)
		}
		c.Log.Info("the pod of an adopted endpoint is known", "pod", pod.String(), "link", e.Link)
	}
	return nil
}

// adopt makes an endpoint of a link. If the backend does not know the address yet, the
// endpoint claims it until the backend does. If another endpoint has the address, the
// link is not adopted and is deleted by the next comparison.
func (c *Controller) adopt(ctx context.Context, w link.Wired) error {
	pod := c.podOfLink(w.Key, w.Link)
	found := endpoint.Attachment{Table: w.Table}
	if c.Branches != nil {
		branch, on, err := c.Branches.Adopted(ctx, w.Key)
		if err != nil {
			return err
		}
		if on {
			found = branch
		}
	}
	var e endpoint.Endpoint
	var unknown error
	pending, err := c.State.Update(func(tx *state.Tx) error {
		tx.Durable()
		id, err := tx.NextID()
		if err != nil {
			return err
		}
		e = endpoint.Adopt(id, w.Key, pod, endpoint.Wire{
			Addresses: endpoint.AddressesOf(w.Addresses...), Attachment: found,
			Link: w.Link, MTU: c.MTU,
		}, w.Dying, time.Now())
		if err := tx.Check(e); err != nil {
			return err
		}
		if found.Kind != endpoint.Branch {
			e.Attachment, unknown = c.Backend.Adopt(tx, e, time.Now())
		}
		if unknown != nil && !errors.Is(unknown, ipam.ErrUnknown) {
			return unknown
		}
		return tx.Put(e)
	})
	log := c.Log.With("pod", pod.String(), "ip", w.Addresses[0], "link", w.Link)
	switch {
	case errors.Is(err, ipam.ErrHeld), errors.Is(err, endpoint.ErrTaken):
		log.Error("a pod's link cannot be adopted", "error", err)
		return nil
	case err != nil:
		return err
	}
	if err := pending.Wait(ctx); err != nil {
		return err
	}
	if unknown != nil {
		log.Warn("pod adopted from the kernel, the backend does not know its address yet", "error", unknown)
		c.Backend.Doubted("a pod has an address that is not in the record")
	} else {
		log.Warn("pod adopted from the kernel", "stage", e.Stage)
	}
	return nil
}

// FinishInterrupted rolls back the ADDs that an earlier process did not finish, and
// finishes its DELs, the spooled ones included. An endpoint that fails does not keep the others
// from it. That the disk does not take a removal is no error: it is recorded later. Call it once
// the kernel agrees with the state.
func (c *Controller) FinishInterrupted(ctx context.Context) (problems error) {
	for _, e := range c.State.Endpoints() {
		switch e.Stage {
		case endpoint.Wiring:
			c.Log.Info("rolling back an interrupted ADD", "pod", e.Name(), "ip", e.Addresses.Primary())
		case endpoint.Removing:
		case endpoint.Waiting, endpoint.Ready:
			continue
		}
		err := c.detach(ctx, e)
		switch {
		case errors.Is(err, journal.ErrDisk):
			c.Log.Warn("a removal is not recorded yet", "pod", e.Name(), "error", err)
		case err != nil:
			problems = errors.Join(problems, fmt.Errorf("finish pod %s: %w", e.Name(), err))
		}
	}
	if err := c.DrainSpool(ctx); err != nil {
		c.Log.Warn("spooled DELs are left for the next pass", "error", err)
	}
	return problems
}
