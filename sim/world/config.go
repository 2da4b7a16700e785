// Package world runs the embedded VPC: the account (sim/cloud), its API on the
// wire (sim/ec2, sim/sts), instance metadata, the resolver and the fabric, kept
// in step.
//
// A change of the account is put on the wire at once, and an attachment is
// reported as attached only when its link is in the guest. lab/ starts it; the
// product knows nothing of it.
package world

import (
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

// Config is what a world is made of.
type Config struct {
	Spec  cloud.Spec
	Roles []iam.Role
	// Issuers whose service account tokens STS accepts at start; see also
	// World.TrustIssuer.
	Issuers []sts.Issuer
	Faults  faults.Plan

	// Namespace is the fabric's network namespace, such as "tl-lab-vpc", and
	// Internet that of the outside host, such as "tl-lab-net". Start makes both
	// and Close removes them. An empty Namespace runs the API alone, without a
	// wire: attachments complete at once.
	Namespace string
	Internet  string
	// Outside are the outside host's addresses; empty is 203.0.113.10.
	Outside []netip.Addr

	// Listen is where the API and the admin endpoints are on the machine itself;
	// empty is "127.0.0.1:0".
	Listen string

	// Machines is the power switch of instances; nil has none, and reboots and
	// terminations complete at once.
	Machines Machines
	Log      *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Machines is the power switch of the instances. Both methods are level
// triggered: they may be called again for the same instance, and return when the
// machine is off, or on again.
type Machines interface {
	// Reboot turns the machine of an instance off and on. Its namespace may be a
	// new one afterwards: World plugs the links again.
	Reboot(ctx context.Context, id vpc.InstanceID) error
	// Terminate turns it off for good.
	Terminate(ctx context.Context, id vpc.InstanceID) error
}
