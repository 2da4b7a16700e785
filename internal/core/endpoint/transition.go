package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// What callers branch on.
var (
	// ErrStage: the transition does not start at the endpoint's stage.
	ErrStage = errors.New("the endpoint is in another stage")
	// ErrTaken: another endpoint has the ID or an address.
	ErrTaken = errors.New("another endpoint has it")
)

// Wire is what an endpoint gets before its link is made.
type Wire struct {
	Addresses  Addresses
	Attachment Attachment
	Link       string // name of the host's end
	MTU        int    // bytes
}

// Attach gives a waiting endpoint its addresses and link: Waiting → Wiring.
// Repeating it with the same values changes nothing.
func (e Endpoint) Attach(w Wire, now time.Time) (Endpoint, error) {
	same := e.Addresses == w.Addresses && e.Attachment == w.Attachment && e.Link == w.Link && e.MTU == w.MTU
	switch {
	case !w.Addresses.Primary().IsValid() || w.Link == "":
		return e, fmt.Errorf("attach endpoint %d of %s: it needs an address and a link", e.ID, e.Name())
	case e.Stage == Wiring && same:
		return e, nil
	case e.Stage != Waiting:
		return e, fmt.Errorf("attach endpoint %d of %s: %w: %s", e.ID, e.Name(), ErrStage, e.Stage)
	}
	e.Addresses, e.Attachment, e.Link, e.MTU = w.Addresses, w.Attachment, w.Link, w.MTU
	return e.enter(Wiring, now), nil
}

// Complete records that everything the endpoint needs is in force: Wiring → Ready.
// Repeating it changes nothing.
func (e Endpoint) Complete(now time.Time) (Endpoint, error) {
	switch e.Stage {
	case Ready:
		return e, nil
	case Wiring:
		return e.enter(Ready, now), nil
	case Waiting, Removing:
	}
	return e, fmt.Errorf("complete endpoint %d of %s: %w: %s", e.ID, e.Name(), ErrStage, e.Stage)
}

// Remove accepts the endpoint's DEL, or rolls back an ADD that may have left something
// in the kernel: Wiring or Ready → Removing. Repeating it changes nothing. A waiting
// endpoint has nothing to remove: its row is deleted instead.
func (e Endpoint) Remove(now time.Time) (Endpoint, error) {
	switch e.Stage {
	case Removing:
		return e, nil
	case Wiring, Ready:
		return e.enter(Removing, now), nil
	case Waiting:
	}
	return e, fmt.Errorf("remove endpoint %d of %s: %w: %s", e.ID, e.Name(), ErrStage, e.Stage)
}

// Adopt makes an endpoint of a link found in the kernel that no row describes: Ready,
// or Removing when the link waits to be deleted.
func Adopt(id ID, key Key, pod Pod, w Wire, dying bool, now time.Time) Endpoint {
	e := New(id, key, pod, "", time.Time{}, now)
	e.Addresses, e.Attachment, e.Link, e.MTU = w.Addresses, w.Attachment, w.Link, w.MTU
	if dying {
		return e.enter(Removing, now)
	}
	return e.enter(Ready, now)
}

// Identify names the pod of an endpoint that was adopted before its pod was known. The pod of any other
// endpoint stays.
func (e Endpoint) Identify(pod Pod) Endpoint {
	if e.Pod == (Pod{}) && pod != (Pod{}) {
		e.Pod = pod
		e.Generation++
	}
	return e
}

// Rebooted is the endpoint after the machine booted again: the link ended with the
// earlier boot and its DEL may never come, so it is Removing.
func (e Endpoint) Rebooted(now time.Time) Endpoint {
	if e.Stage == Removing {
		return e
	}
	return e.enter(Removing, now)
}

func (e Endpoint) enter(s Stage, now time.Time) Endpoint {
	e.Stage, e.Since = s, stamp(now)
	e.Generation++
	return e
}

// Others finds the endpoints that exist.
type Others interface {
	ByID(id ID) (Endpoint, bool)
	ByAddress(addr netip.Addr) (Endpoint, bool)
}

// Check refuses an endpoint with ErrTaken if another one has its ID or one of its
// addresses, also one that is being removed. The store calls it before it takes a row.
func Check(e Endpoint, others Others) error {
	if e.ID == 0 || e.ID > MaxID {
		return fmt.Errorf("endpoint of %s: ID %d: must be from 1 to %d", e.Name(), e.ID, MaxID)
	}
	if o, ok := others.ByID(e.ID); ok && o.Key != e.Key {
		return fmt.Errorf("endpoint %d of %s: ID: %w: %s", e.ID, e.Name(), ErrTaken, o.Name())
	}
	for _, addr := range e.Addresses.List() {
		if o, ok := others.ByAddress(addr); ok && o.ID != e.ID {
			return fmt.Errorf("endpoint %d of %s: address %s: %w: endpoint %d of %s", e.ID, e.Name(), addr, ErrTaken, o.ID, o.Name())
		}
	}
	return nil
}
