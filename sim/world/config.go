// Package world runs the embedded VPC: the account (sim/cloud), its API on the
// wire (sim/ec2, sim/sts), instance metadata, the resolver and the fabric, kept
// in step.
//
// A change of the account is applied to the fabric at once, and an attachment is
// reported as attached only when its link is in the guest. lab/ starts it; the
// product does not depend on it.
package world

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/sts"
)

// Config configures a World.
type Config struct {
	Spec  cloud.Spec
	Roles []iam.Role
	// Issuers are the OpenID Connect providers that STS trusts at start; see also
	// World.Trust.
	Issuers []sts.Issuer
	Faults  faults.Plan

	// Namespace is the fabric's network namespace, such as "tl-lab-vpc", and Internet
	// that of the outside host, such as "tl-lab-net". Start makes both and Close
	// removes them. An empty Namespace runs the API alone, without a fabric:
	// attachments complete at once.
	Namespace string
	Internet  string
	// Outside are the outside host's addresses; empty is 203.0.113.10.
	Outside []netip.Addr

	// BindPrimaries tags the primary interface of each instance with the instance's id at
	// its launch, which AWS does not do: on a node that AWS's CNI daemon served before, the
	// daemon did it, and on others Trunkline's controller does it (ADR 0024).
	BindPrimaries bool

	// NoPlatform leaves out what only a cloud has: instance metadata, EC2 and STS do not
	// answer inside the VPC, and have no names there. The resolver stays.
	NoPlatform bool
	// DetachTime is how long an interface is "detaching"; zero is cloud.DetachTime.
	DetachTime time.Duration
	// Latency is how long each answer of EC2 and STS takes, in addition to injected
	// latency. See query.Options.
	Latency time.Duration

	// Listen is the address of the API and the admin endpoints on the machine itself;
	// empty is "127.0.0.1:0".
	Listen string

	// Machines switches the machines of instances; with nil, reboots and terminations
	// complete at once.
	Machines Machines
	Log      *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// withDefaults fills the fields that have a default.
func (c Config) withDefaults() Config {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.DetachTime = cmp.Or(c.DetachTime, cloud.DetachTime)
	if len(c.Outside) == 0 {
		c.Outside = []netip.Addr{netip.MustParseAddr(OutsideAddress)}
	}
	return c
}

// Machines switches the machines of instances. Both methods are level-triggered: they
// may be called again for the same instance, and return when the machine is off, or
// on again.
type Machines interface {
	// Reboot turns the machine of an instance off and on. Its namespace may be a new
	// one afterwards: World adds the links again.
	Reboot(ctx context.Context, id vpc.InstanceID) error
	// Terminate turns the machine off permanently.
	Terminate(ctx context.Context, id vpc.InstanceID) error
}
