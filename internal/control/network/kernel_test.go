package network

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/nft"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// kernel is a kernel in memory: it has links and what is on them, and nftables.
type kernel struct {
	mu        sync.Mutex
	state     hostnet.State
	rules     ruleset.Ruleset
	during    func(call string) // called after each read; may change the kernel
	refuse    map[string]bool   // keys of objects that cannot be changed
	leftByAWS []string          // chains and tables of AWS's daemon
	legacy    []string          // chains of AWS's daemon in iptables-legacy
	legacyErr error             // of their removal
	legacyWhy error             // the last one
	hostPorts []nft.HostPorts   // of pods of AWS's network
}

// newKernel has the link of eni-1.
func newKernel() *kernel {
	return &kernel{
		state:  hostnet.State{Links: []hostnet.Link{{Name: "eth0", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, MTU: 9001, Admin: hostnet.AdminUp}}},
		refuse: map[string]bool{},
	}
}

func (k *kernel) called(what string) {
	if k.during != nil {
		k.during(what)
	}
}

func (k *kernel) Read(context.Context, ...string) (hostnet.State, error) {
	k.mu.Lock()
	have := hostnet.Join(k.state)
	k.mu.Unlock()
	k.called("links")
	return have, nil
}

// Settings are as init wrote them, unless a test changed them; links of pods route packets on.
func (k *kernel) Settings(names ...string) (list []hostnet.Sysctl, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		s := hostnet.Sysctl{Name: name, Value: "1"}
		if strings.HasSuffix(name, "/rp_filter") {
			s.Value = "2"
		}
		for _, changed := range k.state.Sysctls {
			if changed.Name == name {
				s.Value = changed.Value
			}
		}
		list = append(list, s)
	}
	return list, nil
}

func (k *kernel) Do(_ context.Context, op hostnet.Op) error {
	if k.refuse[op.Object.Key()] {
		return fmt.Errorf("%s: refused", op)
	}
	switch op.Verb {
	case hostnet.Add:
		k.put(op.Object)
	case hostnet.Change:
		k.remove(op.Object.Key())
		k.put(op.Object)
	case hostnet.Delete:
		k.remove(op.Object.Key())
	case hostnet.Report:
	}
	return nil
}

func (k *kernel) FindENI(ctx context.Context, mac vpc.MAC) (string, error) {
	names, err := k.Names(ctx)
	if err == nil && names[mac] == "" {
		err = fmt.Errorf("no link has address %s", mac)
	}
	return names[mac], err
}

func (k *kernel) Names(context.Context) (map[vpc.MAC]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	names := map[vpc.MAC]string{}
	for _, l := range k.state.Links {
		names[l.MAC] = l.Name
	}
	return names, nil
}

// put adds objects.
func (k *kernel) put(objects ...hostnet.Object) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, o := range objects {
		switch o := o.(type) {
		case hostnet.Link:
			k.state.Links = append(k.state.Links, o)
		case hostnet.Address:
			k.state.Addresses = append(k.state.Addresses, o)
		case hostnet.Route:
			k.state.Routes = append(k.state.Routes, o)
		case hostnet.Rule:
			k.state.Rules = append(k.state.Rules, o)
		case hostnet.Neighbour:
			k.state.Neighbours = append(k.state.Neighbours, o)
		case hostnet.Sysctl:
			k.state.Sysctls = append(k.state.Sysctls, o)
		}
	}
}

// remove deletes the objects of keys, and with a link what is on it.
func (k *kernel) remove(keys ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		k.state.Links = without(k.state.Links, key)
		k.state.Addresses = without(k.state.Addresses, key)
		k.state.Routes = without(k.state.Routes, key)
		k.state.Rules = without(k.state.Rules, key)
		k.state.Neighbours = without(k.state.Neighbours, key)
		k.state.Sysctls = without(k.state.Sysctls, key)
	}
	there := func(link string) bool {
		return slices.ContainsFunc(k.state.Links, func(l hostnet.Link) bool { return l.Name == link })
	}
	k.state.Routes = slices.DeleteFunc(k.state.Routes, func(r hostnet.Route) bool { return !there(r.Link) })
	k.state.Neighbours = slices.DeleteFunc(k.state.Neighbours, func(n hostnet.Neighbour) bool { return !there(n.Link) })
	k.state.Addresses = slices.DeleteFunc(k.state.Addresses, func(a hostnet.Address) bool { return !there(a.Link) })
}

// without returns a list without the object of a key.
func without[T hostnet.Object](list []T, key string) (rest []T) {
	for _, o := range list {
		if o.Key() != key {
			rest = append(rest, o)
		}
	}
	return rest
}

// wire makes what the ADD of an endpoint makes, and unwire deletes it.
func (k *kernel) wire(e endpoint.Endpoint) {
	k.unwire(e)
	k.put(hostnet.ForEndpoint(e).Objects()...)
}

func (k *kernel) unwire(e endpoint.Endpoint) {
	for _, o := range hostnet.ForEndpoint(e).Objects() {
		k.remove(o.Key())
	}
}

// nft makes or deletes an endpoint's elements.
func (k *kernel) nft(e endpoint.Endpoint, there bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, want := range ruleset.PodOf(e, false).Elements() {
		for i := range k.rules.Tables {
			if k.rules.Tables[i].Family != want.Family {
				continue
			}
			set := k.rules.Tables[i].Set(want.Set)
			set.Elements = slices.DeleteFunc(slices.Clone(set.Elements), func(e nftables.Element) bool { return e == want.Element })
			if there {
				set.Elements = append(set.Elements, want.Element)
			}
		}
	}
}

// firewall is the kernel's nftables.
type firewall struct{ *kernel }

func (f firewall) Read(context.Context) (tables []*nftables.Table, err error) {
	f.mu.Lock()
	for _, t := range f.rules.Tables {
		t.Sets = slices.Clone(t.Sets)
		tables = append(tables, &t)
	}
	f.mu.Unlock()
	f.called("nftables")
	return tables, nil
}

// RemoveAWS implements Filter.
func (f firewall) RemoveAWS(context.Context) (removed []string, err error) {
	removed, f.leftByAWS = f.leftByAWS, nil
	if f.legacyWhy = f.legacyErr; f.legacyErr == nil {
		removed, f.legacy = append(removed, f.legacy...), nil
	}
	return removed, f.legacyErr
}

// LegacyAWS implements Filter.
func (f firewall) LegacyAWS() (chains []string, why, err error) { return f.legacy, f.legacyWhy, nil }

// AWSHostPorts implements Filter.
func (f firewall) AWSHostPorts(context.Context) ([]nft.HostPorts, error) {
	return slices.Clone(f.hostPorts), nil
}

// RemoveHostPorts implements Filter.
func (f firewall) RemoveHostPorts(_ context.Context, list ...nft.HostPorts) (removed []string, err error) {
	for _, h := range list {
		f.hostPorts = slices.DeleteFunc(f.hostPorts, func(o nft.HostPorts) bool { return o.Pod == h.Pod })
		removed = append(removed, h.String())
	}
	return removed, nil
}

func (f firewall) Apply(_ context.Context, want func() ruleset.Ruleset) error {
	rs := want()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = rs
	return nil
}
