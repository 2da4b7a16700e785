package awsnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// formatVersion is that of the checkpoint. Source: CheckpointFormatVersion in
// pkg/ipamd/datastore/data_store.go, as is the file's format.
const formatVersion = "vpc-cni-ipam/1"

// state is the content of the checkpoint.
type state struct {
	Version     string       `json:"version"`
	Allocations []allocation `json:"allocations"`
}

// allocation is an address in use, with the sandbox that has it.
type allocation struct {
	Network   string     `json:"networkName"`
	Container string     `json:"containerID"`
	IfName    string     `json:"ifName"`
	IPv4      netip.Addr `json:"ipv4"`
	Since     int64      `json:"allocationTimestamp"` // nanoseconds since 1970
	Metadata  metadata   `json:"metadata"`
}

type metadata struct {
	Namespace  string `json:"k8sPodNamespace"`
	Pod        string `json:"k8sPodName"`
	Interfaces int    `json:"interfacesCount"`
}

// pool gives the addresses of the interfaces to sandboxes.
type pool struct {
	path       string // of the checkpoint
	interfaces []Interface

	mu  sync.Mutex
	all []allocation // guarded by mu
}

// errEmpty: no address is free. AWS's daemon fails the ADD then, and the runtime repeats it.
var errEmpty = errors.New("failed to assign an IP address to container")

// errTwice ends the start of AWS's daemon: two sandboxes cannot have one address.
var errTwice = errors.New("the address is in use already")

// openPool reads the checkpoint; links are the names of the node's links. A node without one is
// new, and gets one with its first pod. stale are the allocations of pods without a link: their
// rules are leftovers. Source: ReadBackingStore in pkg/ipamd/datastore/data_store.go.
func openPool(path string, interfaces []Interface, links []string) (p *pool, stale []allocation, err error) {
	p = &pool{path: path, interfaces: interfaces}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil, nil
	}
	var have state
	if err == nil {
		err = json.Unmarshal(raw, &have)
	}
	if err == nil && have.Version != formatVersion {
		err = fmt.Errorf("version is %q, want %q", have.Version, formatVersion)
	}
	if err == nil {
		stale, err = p.restore(have.Allocations, links)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the checkpoint %s: %w", path, err)
	}
	return p, stale, p.save()
}

// restore takes over the allocations of pods with a link, and those without the names of a
// pod, which earlier releases wrote, without looking for one. An address of no interface is
// dropped. An address that occurs twice is an error.
func (p *pool) restore(all []allocation, links []string) (stale []allocation, err error) {
	for _, a := range all {
		switch {
		case !a.hasLink(links):
			stale = append(stale, a)
		case p.of(a.IPv4).ID == "":
			continue
		case p.inUse(a.IPv4):
			return nil, fmt.Errorf("%s: %w", a.IPv4, errTwice)
		default:
			p.all = append(p.all, a)
		}
	}
	return stale, nil
}

// hasLink reports whether the pod of an allocation has a link. Source:
// validateAllocationByPodVethExistence.
func (a allocation) hasLink(links []string) bool {
	if a.Metadata.Namespace == "" || a.Metadata.Pod == "" {
		return true
	}
	suffix := Pod{Namespace: a.Metadata.Namespace, Name: a.Metadata.Pod}.hash()
	return slices.ContainsFunc(links, func(l string) bool { return strings.HasSuffix(l, suffix) })
}

// assign returns the address of a sandbox and its interface. It takes a free address of the
// interface with the fewest pods, so that pods are on all of them: AWS's daemon takes one in
// the order of a Go map, which is random.
func (p *pool) assign(a allocation) (netip.Addr, Interface, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, have := range p.all {
		if have.Network == a.Network && have.Container == a.Container && have.IfName == a.IfName {
			return have.IPv4, p.of(have.IPv4), nil
		}
	}
	var best Interface
	fewest := -1
	for _, i := range p.interfaces {
		addresses := i.addresses()
		free := slices.DeleteFunc(slices.Clone(addresses), p.inUse)
		if used := len(addresses) - len(free); len(free) > 0 && (fewest < 0 || used < fewest) {
			best, fewest, a.IPv4 = i, used, free[0]
		}
	}
	if fewest < 0 {
		return netip.Addr{}, Interface{}, errEmpty
	}
	a.Since = time.Now().UnixNano()
	p.all = append(p.all, a)
	return a.IPv4, best, p.save()
}

// release frees the address of a sandbox and returns what it was; false if it had none.
func (p *pool) release(network, container, ifName string) (allocation, Interface, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.IndexFunc(p.all, func(a allocation) bool {
		return a.Network == network && a.Container == container && a.IfName == ifName
	})
	if at < 0 {
		return allocation{}, Interface{}, false, nil
	}
	a := p.all[at]
	p.all = slices.Delete(p.all, at, at+1)
	return a, p.of(a.IPv4), true, p.save()
}

func (p *pool) inUse(a netip.Addr) bool {
	return slices.ContainsFunc(p.all, func(have allocation) bool { return have.IPv4 == a })
}

// of returns the interface of an address.
func (p *pool) of(a netip.Addr) Interface {
	at := slices.IndexFunc(p.interfaces, func(i Interface) bool { return slices.Contains(i.addresses(), a) })
	if at < 0 {
		return Interface{}
	}
	return p.interfaces[at]
}

// save requires the lock, or that nothing else uses p yet.
func (p *pool) save() error {
	list := p.all
	if list == nil {
		list = []allocation{}
	}
	raw, err := json.Marshal(state{Version: formatVersion, Allocations: list})
	if err != nil {
		return err
	}
	return atomicfile.Write(p.path, raw, 0o600)
}
