package hostnet_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// parts draws a node's desired network: the node, a secondary interface and some pods.
func parts(t *rapid.T) []hostnet.Part {
	all := []hostnet.Part{
		{Owner: "node", State: hostnet.ForNode([]vpc.Family{vpc.IPv4}, nil)},
		{Owner: "interface eni-1", State: hostnet.ForENI(hostnet.ENI{
			ID: "eni-1", Link: "eth1", MAC: vpc.MAC{2, 1}, Device: 1, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.11/24")},
		})},
	}
	for i := range 3 {
		e := endpoint.New(endpoint.ID(i+1), endpoint.Key{ContainerID: fmt.Sprint("c", i), IfName: "eth0"}, endpoint.Pod{}, "", time.Time{}, time.Time{})
		e, err := e.Attach(endpoint.Wire{
			Addresses: endpoint.AddressesOf(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})), Link: fmt.Sprint("eni", i), MTU: 9001,
			Attachment: endpoint.Attachment{Kind: endpoint.Secondary, Table: uint32(rapid.SampledFrom([]int{2, hostnet.TableMain}).Draw(t, "table"))},
		}, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "ready") {
			e.Stage = endpoint.Ready
		}
		all = append(all, hostnet.Part{Owner: fmt.Sprint("endpoint ", e.ID), State: hostnet.ForEndpoint(e)})
	}
	return all
}

// damaged draws an actual state: some objects of a desired one, changed or not.
func damaged(t *rapid.T, all []hostnet.Part) (have hostnet.State) {
	lacks := func() bool { return rapid.IntRange(0, 3).Draw(t, "lacks") == 0 }
	for _, p := range all {
		for _, o := range p.State.Objects() {
			if lacks() {
				continue
			}
			switch o := o.(type) {
			case hostnet.Link:
				o.MTU = rapid.SampledFrom([]int{9001, 1500}).Draw(t, "mtu")
				o.Admin = rapid.SampledFrom([]hostnet.Admin{hostnet.AdminUp, hostnet.AdminDown}).Draw(t, "admin")
				have.Links = append(have.Links, o)
			case hostnet.Address:
				have.Addresses = append(have.Addresses, o)
			case hostnet.Route:
				o.Protocol = rapid.SampledFrom([]uint8{hostnet.RouteProtocol, 3}).Draw(t, "protocol")
				have.Routes = append(have.Routes, o)
			case hostnet.Rule:
				have.Rules = append(have.Rules, o)
			case hostnet.Neighbour:
				have.Neighbours = append(have.Neighbours, o)
			}
		}
		if !lacks() {
			have.Routes = append(have.Routes, p.State.Absent...)
		}
	}
	if !lacks() {
		have.Addresses = append(have.Addresses, hostnet.Address{Link: "eth1", Prefix: netip.MustParsePrefix("10.0.0.98/24")})
		have.Neighbours = append(have.Neighbours, hostnet.Neighbour{Link: "eni0", Address: netip.MustParseAddr("10.0.9.8")})
		have.Rules = append(have.Rules, hostnet.Rule{Family: vpc.IPv4, Priority: 512, To: netip.MustParsePrefix("10.0.9.9/32"), Table: hostnet.TableMain, Protocol: hostnet.RouteProtocol})
		have.Links = append(have.Links, hostnet.Link{Name: "eni9", Alias: hostnet.LinkAliasPrefix + "pod/c9/eth0/10.0.1.9", Group: hostnet.LinkGroupPod})
	}
	return have
}

func steps(ops []hostnet.Op) []string {
	var list []string
	for _, op := range ops {
		list = append(list, op.String())
	}
	slices.Sort(list)
	return list
}

// The comparison of the whole state is the oracle.
func TestPartsNeedTheSameStepsAsTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := parts(t)
		have := damaged(t, all)
		if rapid.Bool().Draw(t, "one part less") {
			all = all[:len(all)-1]
		}
		actual := hostnet.NewActual(have)
		var states []hostnet.State
		byPart := actual.Extra(all)
		for _, p := range all {
			states = append(states, p.State)
			byPart = append(byPart, actual.Diff(p.State)...)
		}
		if got, want := steps(byPart), steps(hostnet.Diff(hostnet.Join(states...), have)); !slices.Equal(got, want) {
			t.Fatalf("by parts\n%q\nas a whole\n%q", got, want)
		}
	})
}

// What is removed of a part is what is superfluous without it.
func TestAPartIsRemovedWithoutWhatOthersNeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := parts(t)
		have := damaged(t, all)
		gone, rest := all[len(all)-1], all[:len(all)-1]
		actual := hostnet.NewActual(have)
		for _, op := range actual.Remove(gone.State, rest) {
			if op.Verb != hostnet.Delete {
				t.Fatalf("removing a part needs %s", op)
			}
		}
		if ops := actual.Remove(gone.State, all); len(ops) > 0 {
			t.Fatalf("another part needs all of it, and %v", ops)
		}
		superfluous := steps(actual.Extra(rest))
		for _, step := range steps(actual.Remove(gone.State, rest)) {
			if !slices.Contains(superfluous, step) {
				t.Fatalf("%s is removed and not superfluous: %q", step, superfluous)
			}
		}
	})
}

// An interface that is gone can have left its name to another one.
func TestAPartLeavesALinkOfAnotherOwnerAlone(t *testing.T) {
	eni := func(id vpc.ENIID, mac byte, addr string) hostnet.State {
		return hostnet.ForENI(hostnet.ENI{ID: id, Link: "eth1", MAC: vpc.MAC{mac}, Device: int(mac), Addresses: []netip.Prefix{netip.MustParsePrefix(addr)}})
	}
	gone, have := eni("eni-2", 2, "10.0.0.5/24"), eni("eni-3", 3, "10.0.0.6/24")
	have.Absent = nil
	actual := hostnet.NewActual(have)
	for _, op := range append(actual.Diff(gone), actual.Remove(gone, nil)...) {
		if op.Verb == hostnet.Delete {
			t.Errorf("another interface's: %s", op)
		}
	}
}
