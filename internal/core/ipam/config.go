package ipam

import (
	"fmt"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Config is the operator's configuration of the pool. DefaultConfig holds the defaults.
type Config struct {
	// Mode of addressing; only ModeSecondaryIPv4 works.
	Mode Mode
	// Families served; only IPv4 works.
	Families []vpc.Family

	// WarmIPs is how many addresses are kept free beyond what pods need
	// (WARM_IP_TARGET). When fewer are free, the pool grows.
	WarmIPs int
	// Headroom is how many addresses beyond WarmIPs the pool grows to and keeps: one
	// EC2 call then serves that many pods. 0 with WarmIPs set is AWS's exact
	// behaviour, one call per pod.
	Headroom int
	// WarmENIs, when positive, keeps that many interfaces' worth of addresses free
	// and fills interfaces whole (WARM_ENI_TARGET). WarmIPs and MinIPs override it.
	WarmENIs int
	// MinIPs is the least number of addresses the node holds (MINIMUM_IP_TARGET).
	MinIPs int
	// MaxENIs caps the interfaces below the instance's limit; 0 is no cap.
	MaxENIs int
	// KeepTrunkSlot leaves one slot of the instance for a trunk, until one is attached, which takes
	// a slot itself.
	KeepTrunkSlot bool

	// CoolDown is how long a freed address is not assigned again.
	CoolDown time.Duration
	// IdleAfter is how long addresses must have been unneeded before they are
	// released, the cool-down after their last pod included. A jitter of up to a quarter
	// of it, from Seed, is added, so that nodes that become idle at the same time release
	// at different times. The ledger multiplies it if addresses are needed again soon after
	// a release, see View.Idle.
	IdleAfter time.Duration
	// ReleaseEvery is the time between two releases.
	ReleaseEvery time.Duration
	// ReleaseBatch is the most addresses released by one call.
	ReleaseBatch int
	// MinENIAge is how old an interface must be before it may be removed.
	MinENIAge time.Duration
	// DemandFor is how long a pod that is bound to the node and has sent no ADD counts
	// as demand.
	DemandFor time.Duration
	// Seed of the jitter: a hash of the node's name.
	Seed uint64
}

// DefaultConfig does not use AWS's default WARM_ENI_TARGET=1: that keeps up to two
// whole interfaces of addresses idle on every node, the most common cause of exhausted
// subnets. Demand is known from the pods bound to the node before their ADD, so eight
// warm addresses and eight of headroom serve a burst as fast, and constant churn without
// any EC2 call. WARM_ENI_TARGET applies when it is set.
func DefaultConfig() Config {
	return Config{
		Mode: ModeSecondaryIPv4, Families: []vpc.Family{vpc.IPv4},
		WarmIPs: 8, Headroom: 8,
		CoolDown: 30 * time.Second, IdleAfter: 180 * time.Second, ReleaseEvery: 30 * time.Second, ReleaseBatch: 16,
		MinENIAge: 60 * time.Second, DemandFor: 5 * time.Minute,
	}
}

// Validate names the first invalid value of c. Modes and families without an
// implementation are errors that wrap ErrUnsupported.
func (c Config) Validate() error {
	if c.Mode != ModeSecondaryIPv4 {
		return fmt.Errorf("address mode %q: %w; use %q", c.Mode, ErrUnsupported, ModeSecondaryIPv4)
	}
	for _, f := range c.Families {
		if f != vpc.IPv4 {
			return fmt.Errorf("address family %s for pods: %w; use ipv4", f, ErrUnsupported)
		}
	}
	for _, v := range []struct {
		name  string
		value int
		least int
	}{
		{"warm IP target", c.WarmIPs, 0},
		{"headroom", c.Headroom, 0},
		{"warm ENI target", c.WarmENIs, 0},
		{"minimum IP target", c.MinIPs, 0},
		{"max ENI", c.MaxENIs, 0},
		{"release batch", c.ReleaseBatch, 1},
		{"cool-down", int(c.CoolDown), 0},
		{"idle time", int(c.IdleAfter), 1},
		{"release interval", int(c.ReleaseEvery), 1},
	} {
		if v.value < v.least {
			return fmt.Errorf("%s %d: must be at least %d", v.name, v.value, v.least)
		}
	}
	return nil
}

// Settings returns the part of c that New needs. The ledger counts an address until its
// cool-down has ended, so that the window over its count is shorter by that time.
func (c Config) Settings() Settings {
	return Settings{CoolDown: c.CoolDown, IdleAfter: max(0, c.jitter(c.IdleAfter)-c.CoolDown)}
}

// wholeENIs reports whether the warm target is counted in interfaces.
func (c Config) wholeENIs() bool { return c.WarmENIs > 0 && c.WarmIPs == 0 && c.MinIPs == 0 }

// detachTakes is how long after DetachNetworkInterface an interface is taken for available.
// EC2 takes seconds and refuses to delete it before; a describe that says so costs as much
// as the refusal. AWS's daemon waits 2 s, which is too short on some clusters. Source:
// github.com/aws/amazon-vpc-cni-k8s/issues/1399.
const detachTakes = 20 * time.Second

// deleteAfter is how long after its detachment an interface is deleted: an operator who
// wants frequent releases has set a shorter ReleaseEvery.
func (c Config) deleteAfter() time.Duration { return min(detachTakes, c.ReleaseEvery) }

// jitter adds up to a quarter of d to it; the same seed gives the same result.
func (c Config) jitter(d time.Duration) time.Duration {
	x := c.Seed + 0x9e3779b97f4a7c15 // splitmix64
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return d + time.Duration(float64(d)/4*float64(x>>11)/(1<<53))
}
