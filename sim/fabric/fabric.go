package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// Options of a fabric.
type Options struct {
	// Internet names the namespace of the outside host, such as "tl-lab-net".
	// It is made when a State has an internet gateway. Empty: the fabric's name
	// followed by "-net".
	Internet string
	// Log may be nil.
	Log *slog.Logger
}

// Fabric is the network of one VPC. Its methods may be called from any goroutine; they
// run one at a time.
type Fabric struct {
	name     string
	internet string
	log      *slog.Logger

	turn chan struct{} // holds one token; its holder may use the fields below
	ns   *os.File
	link *netlink.Handle
	nft  *filter
	ndp  *discovery
	// owner is the port that had each address after the last Apply, so that the
	// flows of an address that leaves its interface can be ended.
	owner map[netip.Prefix]vpc.ENIID
	// numbers are those of the subnets' route tables after the last Apply.
	numbers map[vpc.SubnetID]int
	// public is how hosts beyond the gateway saw each private address after it.
	public map[netip.Addr]netip.Addr
	trunks *trunks
	// changes counts the kernel changes of Apply, for tests of idempotence.
	changes int
}

// Open makes the fabric's namespace, or opens the one of that name that an earlier
// process left, and writes its kernel settings. Call Close, or Destroy to delete the
// namespaces as well.
func Open(name string, o Options) (*Fabric, error) {
	f := &Fabric{name: name, internet: o.Internet, log: o.Log, turn: make(chan struct{}, 1)}
	if f.internet == "" {
		f.internet = name + "-net"
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	if err := netns.Make(name); err != nil {
		return nil, fmt.Errorf("open fabric %s: %w", name, err)
	}
	if err := f.open(); err != nil {
		return nil, fmt.Errorf("open fabric %s: %w", name, err)
	}
	f.turn <- struct{}{}
	return f, nil
}

func (f *Fabric) open() (err error) {
	if f.ns, err = os.Open(netns.Path(f.name)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.release()
		}
	}()
	if f.link, err = handleIn(f.ns, unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	f.trunks = &trunks{link: f.link, namespace: f.name, changes: &f.changes}
	if f.nft, err = openFilter(int(f.ns.Fd())); err != nil {
		return err
	}
	if err = writeSysctls(f.name, routerSysctls()); err != nil {
		return err
	}
	if err = netns.Do(f.ns, func() (err error) {
		f.ndp, err = openDiscovery()
		return err
	}); err != nil {
		return err
	}
	lo, err := f.link.LinkByName("lo")
	if err != nil {
		return err
	}
	return f.link.LinkSetUp(lo)
}

// Name is the name of the fabric's namespace in /run/netns.
func (f *Fabric) Name() string { return f.name }

// InternetName is the name of the outside host's namespace; it exists once a
// State with an internet gateway has been applied.
func (f *Fabric) InternetName() string { return f.internet }

// PortError is the error of one port. It does not affect the other ports.
type PortError struct {
	Port vpc.ENIID
	Err  error
}

func (e *PortError) Error() string { return fmt.Sprintf("port %s: %v", e.Port, e.Err) }
func (e *PortError) Unwrap() error { return e.Err }

// ErrGuestMissing is the cause when the guest namespace of a port does not exist.
var ErrGuestMissing = errors.New("guest namespace does not exist")

// PortErrors returns the errors of single ports that are in an error of Apply.
func PortErrors(err error) map[vpc.ENIID]error {
	found := map[vpc.ENIID]error{}
	collectPortErrors(err, found)
	return found
}

func collectPortErrors(err error, into map[vpc.ENIID]error) {
	switch e := err.(type) { //nolint:errorlint // walks the error tree itself
	case nil:
	case *PortError:
		into[e.Port] = e.Err
	case interface{ Unwrap() []error }:
		for _, sub := range e.Unwrap() {
			collectPortErrors(sub, into)
		}
	case interface{ Unwrap() error }:
		collectPortErrors(e.Unwrap(), into)
	}
}

// Apply makes the kernel equal to want. It compares want with the kernel's actual state,
// so it repairs changes of other programs, and a second Apply changes nothing. Packets of
// flows that the previous State and want allow are not lost. A port that cannot be wired
// is reported as a *PortError (see PortErrors) and the others are still wired; an invalid
// State is rejected as a whole before any change.
func (f *Fabric) Apply(ctx context.Context, want State) error {
	select {
	case <-f.turn:
	case <-ctx.Done():
		return fmt.Errorf("apply to fabric %s: %w", f.name, ctx.Err())
	}
	defer func() { f.turn <- struct{}{} }()
	return f.apply(want)
}

// Drops counts the packets of one port that the fabric dropped, since Open.
type Drops struct {
	Spoofed    uint64 // from an address or MAC that is not the port's
	Misrouted  uint64 // to the port for an address that is not its, with the check on
	Egress     uint64 // allowed by no rule of the sending port's groups
	Ingress    uint64 // allowed by no rule of the receiving port's groups
	Unroutable uint64 // to an address that no port holds, or out without a route or a public address
	Stale      uint64 // in the middle of a connection without state
	Service    uint64 // to an address of the fabric itself where it does not listen, refused ones included
	// UnknownVLAN are the frames with a VLAN that no branch has, while the port is a trunk with
	// branches. They count since the port was plugged, not since Open.
	UnknownVLAN uint64
}

// Total is the sum over all reasons.
func (d Drops) Total() uint64 {
	return d.Spoofed + d.Misrouted + d.Egress + d.Ingress + d.Unroutable + d.Stale + d.Service + d.UnknownVLAN
}

// Counters reads the drops of every port of the last applied State.
func (f *Fabric) Counters() (map[vpc.ENIID]Drops, error) {
	<-f.turn
	defer func() { f.turn <- struct{}{} }()
	if f.link == nil {
		return nil, ErrClosed
	}
	drops, err := f.nft.drops()
	return drops, errors.Join(err, f.trunks.count(drops, f.nft.device))
}

// Close closes the descriptors and keeps the namespaces.
func (f *Fabric) Close() error {
	<-f.turn
	defer func() { f.turn <- struct{}{} }()
	f.release()
	return nil
}

func (f *Fabric) release() {
	if f.link != nil {
		f.link.Close()
		f.link = nil
	}
	if f.nft != nil {
		f.nft.close()
	}
	if f.ndp != nil {
		f.ndp.close()
		f.ndp = nil
	}
	if f.ns != nil {
		_ = f.ns.Close()
	}
}

// Destroy deletes every link and both namespaces, and closes the fabric. Deleting what
// does not exist is success.
func (f *Fabric) Destroy() error {
	<-f.turn
	defer func() { f.turn <- struct{}{} }()
	var errs []error
	if f.link != nil {
		errs = append(errs, f.unplugAll())
	}
	f.release()
	errs = append(errs, netns.Delete(f.name), netns.Delete(f.internet))
	return errors.Join(errs...)
}
