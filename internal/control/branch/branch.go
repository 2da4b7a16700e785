// Package branch attaches pods to branch interfaces: it waits for the annotation by which a
// controller of branches names a pod's, and checks it.
//
// It reads the tables endpoints, interfaces, addresses and pool, and pods by edge/kube; it writes none
// and drives edge/kube, for the CNINode of the node: it reads the record of branches, and adds one
// feature. Modes decides whether a pod gets a branch at all, where each node has a mode of its own. Its refusals have the CNI codes of edge/cnirpc. What a branch needs in the kernel is made
// by control/network from the endpoint. control/cni calls it during the ADD of a pod that requests a
// branch, and app/agent calls Changed when pods or the CNINode changed.
package branch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/cnirpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Pods are the pods of the node; *kube.Cluster is one.
type Pods interface {
	Pods() []kube.Pod
}

// Deps is what the controller works with.
type Deps struct {
	Log   *slog.Logger
	State *state.Store
	Pods  Pods
	Mode  endpoint.Mode
	// Record of the controller of branches; nil: there is no cluster. Owned reports whether it is
	// Trunkline's, and names the pod of each branch.
	Record Record
	Owned  func() bool
	Events Events
	// Policies decide which groups a pod has; nil: those of branches are not compared. Groups reads the
	// groups of an interface from EC2, where the record is not Trunkline's.
	Policies Policies
	Groups   func(ctx context.Context, id vpc.ENIID) ([]vpc.SecurityGroupID, error)
	// Wait bounds how long an ADD waits for a branch.
	Wait time.Duration
	// Missing requests that the backend observes the instance's interfaces: the trunk is not known.
	Missing func(why string)
	// SetUp and TakeDown bring branches into the kernel and remove them.
	SetUp    func(ctx context.Context, e endpoint.Endpoint) error
	TakeDown func(ctx context.Context) error
	// Read reads the kernel.
	Read func(ctx context.Context, sysctls ...string) (hostnet.State, error)
}

// Controller implements cni.Branches. Its methods may be called from any goroutine.
type Controller struct {
	Deps

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
}

// New returns the controller.
func New(d Deps) *Controller { return &Controller{Deps: d, changed: make(chan struct{})} }

// Changed has the ADDs that wait try again: pods, or the node's interfaces, changed.
func (c *Controller) Changed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Controller) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Why an ADD waits.
var (
	errNoBranch = errors.New("the annotation " + vpc.AnnotationPodENI + " is not there yet: the controller of branches has made none; see the events of the pod and the log of that controller")
	errNoTrunk  = errors.New("the node has no trunk interface that EC2 shows; see the events of the Node and the log of the controller of branches")
)

// Grant implements cni.Branches. It waits for the annotation, the node's trunk and, where it has to be
// read, the record of the controller, up to Wait; then
// the runtime has to try again. A wrong annotation is refused at once, and nothing that runs is
// changed.
func (c *Controller) Grant(ctx context.Context, pod kube.Pod, key endpoint.Key) (cni.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Wait)
	defer cancel()
	for asked := false; ; {
		changed := c.next()
		grant, err := c.grant(ctx, pod, key)
		if err == nil || !waits(err) {
			return grant, c.event(pod, err)
		}
		if errors.Is(err, errNoTrunk) && !asked {
			asked = true
			c.Missing("a pod has a branch, and the node's trunk is not known")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return cni.Grant{}, &cnirpc.Error{Code: cnirpc.CodeTryAgain, Msg: "the pod has no branch interface yet", Details: err.Error()}
		}
	}
}

func waits(err error) bool {
	return errors.Is(err, errNoBranch) || errors.Is(err, errNoTrunk) || errors.Is(err, errNoRecord) || errors.Is(err, errOtherGroups)
}

// ReasonAnnotationRefused is the reason of the event on a pod with an annotation that was refused.
const ReasonAnnotationRefused = "PodENIRefused"

// event reports that an annotation was refused, by an event, and returns the error.
func (c *Controller) event(pod kube.Pod, err error) error {
	var refusal *cnirpc.Error
	if errors.As(err, &refusal) && refusal.Code == cnirpc.CodeRefused {
		c.Events.PodWarning(pod.PodRef, pod.UID, ReasonAnnotationRefused, fmt.Sprintf("Pod %s was not started: %s: %s.", pod.PodRef, refusal.Msg, refusal.Details))
	}
	return err
}

func refused(err error) error {
	return &cnirpc.Error{
		Code: cnirpc.CodeRefused, Msg: "the pod's annotation " + vpc.AnnotationPodENI + " was refused",
		Details: err.Error() + "; delete the pod, so that its controller makes another one with a branch",
	}
}

// grant is the attachment by what is known now.
func (c *Controller) grant(ctx context.Context, pod kube.Pod, key endpoint.Key) (cni.Grant, error) {
	for _, p := range c.Pods.Pods() {
		if p.UID == pod.UID {
			pod = p // newer than the one that the ADD began with
		}
	}
	text, ok := pod.Annotations[vpc.AnnotationPodENI]
	if !ok {
		return cni.Grant{}, c.noBranch(pod)
	}
	entries, err := podeni.Decode(text)
	if err != nil {
		return cni.Grant{}, refused(err)
	}
	b := entries[0] // as AWS's plugin: a pod has one interface
	table, err := hostnet.VLANTable(b.VLAN)
	if err != nil {
		return cni.Grant{}, refused(err)
	}
	view, _ := c.State.View(time.Now())
	trunk, err := trunkOf(view.ENIs)
	if err != nil {
		return cni.Grant{}, err
	}
	if err := ofNode(b, view.ENIs); err != nil {
		return cni.Grant{}, refused(err)
	}
	if c.Record != nil {
		if err := c.verify(ctx, c.State.Node().Instance, pod, entries); err != nil {
			return cni.Grant{}, err
		}
	}
	if err := podeni.Conflict(types.UID(pod.UID), entries, held(c.State.Endpoints(), key)); err != nil {
		return cni.Grant{}, refused(err)
	}
	if err := c.carries(ctx, pod, b.ENI); err != nil {
		return cni.Grant{}, err
	}
	return cni.Grant{
		Addresses: endpoint.Addresses{IPv4: b.IPv4, IPv6: b.IPv6},
		Attachment: endpoint.Attachment{
			Kind: endpoint.Branch, Interface: b.ENI, Table: table,
			Branch: endpoint.BranchLink{VLAN: b.VLAN, MAC: b.MAC, Trunk: trunk.ID, Gateways: hostnet.BranchGateways(b.Subnet4, b.Subnet6), Mode: c.Mode},
		},
	}, nil
}

// noBranch is why a pod has no annotation.
func (c *Controller) noBranch(pod kube.Pod) error {
	if c.Policies != nil && (pod.ServiceAccount != "" || pod.Static != "") {
		if d, known := c.Policies.Decide(pod.Selectable()); known && d.Verdict == securitygroup.NotSelected && c.Owned() {
			return fmt.Errorf("%w; no SecurityGroupPolicy selects the pod, and without one it gets none: create it again without the request of %s, or create a policy", errNoBranch, vpc.ResourcePodENI)
		}
	}
	return errNoBranch
}

// trunkOf returns the node's trunk.
func trunkOf(enis []ipam.ENIView) (ipam.ENIView, error) {
	for _, e := range enis {
		if e.Type == vpc.TypeTrunk && e.Device > 0 {
			return e, nil
		}
	}
	return ipam.ENIView{}, errNoTrunk
}

// ofNode refuses a branch with the id, the MAC or an address of an interface of the instance itself:
// a pod that had them would take packets of the node or of its other pods.
func ofNode(b podeni.Entry, enis []ipam.ENIView) error {
	for _, e := range enis {
		switch {
		case e.ID == b.ENI:
			return fmt.Errorf("%s is attached to the instance itself: %w", b.ENI, podeni.ErrForged)
		case e.MAC == b.MAC:
			return fmt.Errorf("ifAddress %s is that of %s: %w", b.MAC, e.ID, podeni.ErrForged)
		case has(e, b.IPv4):
			return fmt.Errorf("privateIp %s is an address of %s: %w", b.IPv4, e.ID, podeni.ErrForged)
		case has(e, b.IPv6):
			return fmt.Errorf("ipv6Addr %s is an address of %s: %w", b.IPv6, e.ID, podeni.ErrForged)
		}
	}
	return nil
}

// has reports whether an address of either family is that of an interface, of a pod there, or of a prefix that is
// delegated to it. A branch has one or both families.
func has(e ipam.ENIView, addr netip.Addr) bool {
	_, delegated := e.PrefixOf(addr)
	return addr.IsValid() && (delegated || e.PrimaryIP == addr || slices.ContainsFunc(e.Addresses, func(a ipam.Address) bool { return a.Addr == addr }))
}

// held are the branches that other sandboxes are wired with. Those of a pod that is being removed
// count still: its device may exist.
func held(endpoints []endpoint.Endpoint, but endpoint.Key) (list []podeni.Held) {
	for _, e := range endpoints {
		if e.Attachment.Kind != endpoint.Branch || e.Key == but {
			continue
		}
		list = append(list, podeni.Held{Pod: types.UID(e.Pod.UID), Entries: []podeni.Entry{{
			ENI: e.Attachment.Interface, MAC: e.Attachment.Branch.MAC, VLAN: e.Attachment.Branch.VLAN, IPv4: e.Addresses.IPv4, IPv6: e.Addresses.IPv6,
		}}})
	}
	return list
}

// Connect implements cni.Branches.
func (c *Controller) Connect(ctx context.Context, e endpoint.Endpoint) error { return c.SetUp(ctx, e) }

// Disconnect implements cni.Branches.
func (c *Controller) Disconnect(ctx context.Context) error { return c.TakeDown(ctx) }

// Adopted implements cni.Branches: the device of the branch has the attachment.
func (c *Controller) Adopted(ctx context.Context, key endpoint.Key) (endpoint.Attachment, bool, error) {
	have, err := c.Read(ctx)
	if err != nil {
		return endpoint.Attachment{}, false, fmt.Errorf("find the devices of branches: %w", err)
	}
	for _, l := range have.Links {
		if of, a, ok := hostnet.ParseBranch(l); ok && of == key {
			return a, true, nil
		}
	}
	return endpoint.Attachment{}, false, nil
}
