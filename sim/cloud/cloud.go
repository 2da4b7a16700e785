// Package cloud is the account behind the embedded VPC: subnets, security
// groups, route tables, instances and interfaces, and EC2's rules about them.
//
// It decides what EC2 decides (which interface owns an address, what an instance type
// may hold, what a quota refuses) and answers with EC2's errors. It touches no
// network: sim/ec2 serves it over HTTP, and sim/world makes the fabric follow it. It
// is safe for concurrent use; every change is atomic.
package cloud

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Options are what New needs beside the Spec.
type Options struct {
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Instant completes attachments within the call that asks for them. Without it
	// the caller of New must call FinishAttach and FinishDetach when a link has been
	// added or removed.
	Instant bool
	// DetachTime is how long an interface is "detaching" at least, unless Instant is set.
	DetachTime time.Duration
}

// DetachTime is how long EC2 takes in the ordinary case: seconds, and more than two, as
// users of AWS's daemon found, which deletes an interface 2 s after its detachment. Source:
// github.com/aws/amazon-vpc-cni-k8s/issues/1399; Ansible's ec2_eni waits for minutes
// (ansible-collections/amazon.aws, pull request 501).
const DetachTime = 5 * time.Second

// Cloud is the account. Make it with New. What EC2 changes about one interface, group or
// route table are methods of its handle.
type Cloud struct {
	now     func() time.Time
	instant bool
	detach  time.Duration         // Options.DetachTime
	types   map[string]vpc.Limits // never written after New

	current atomic.Pointer[State]

	mu       sync.Mutex // serialises changes; guards what follows
	rng      *rand.Rand
	history  history
	watchers map[chan struct{}]struct{}
}

// State returns the current account.
func (c *Cloud) State() *State { return c.current.Load() }

// Retain keeps States of up to that age for StateAgo, from now on. None are kept by
// default, because the State of a large account is large.
func (c *Cloud) Retain(age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.history.retain = age
}

// StateAgo returns the account as it was lag ago, or the oldest State retained
// when that is younger.
func (c *Cloud) StateAgo(lag time.Duration) *State {
	if lag <= 0 {
		return c.State()
	}
	at := c.now().Add(-lag)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.history.at(at)
}

// Watch returns a channel that receives a token after the account changed, and a
// function that ends the watch. Changes coalesce.
func (c *Cloud) Watch() (changed <-chan struct{}, stop func()) {
	ch := make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchers[ch] = struct{}{}
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watchers, ch)
	}
}

// apply runs fn on a copy of the account and publishes the copy unless fn returns an
// error.
func (c *Cloud) apply(fn func(*change) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := &change{State: c.State().fork(), cloud: c, now: c.now()}
	if err := fn(ch); err != nil {
		return err
	}
	ch.Revision++
	c.publish(ch.State, ch.now)
	return nil
}

// publish makes s current. The caller holds mu.
func (c *Cloud) publish(s *State, now time.Time) {
	c.current.Store(s)
	c.history.add(s, now)
	for ch := range c.watchers {
		select {
		case ch <- struct{}{}:
		default: // a token is pending
		}
	}
}
