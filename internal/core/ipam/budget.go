package ipam

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// budget is what a plan can still take from the subnets, after what is in flight and
// planned already.
type budget struct {
	subnets []Subnet
	taken   map[vpc.SubnetID]int
	pauses  *pauses
}

func newBudget(s Snapshot, p *pauses) *budget {
	b := &budget{subnets: s.Subnets, taken: make(map[vpc.SubnetID]int), pauses: p}
	for _, a := range s.InFlight {
		b.take(a)
	}
	return b
}

// take subtracts what an action takes. A new interface has an address of its own.
func (b *budget) take(a cloud.Action) {
	switch a.Kind {
	case cloud.CreateENI:
		b.taken[a.Subnet] += a.Count + 1
	case cloud.AssignAddresses:
		b.taken[a.Subnet] += a.Count
	case cloud.Attach, cloud.SetUp, cloud.RestoreAddresses, cloud.UnassignAddresses, cloud.Detach, cloud.DeleteENI:
	}
}

// free is how many addresses of a subnet this plan can still request. A subnet without a
// known count is assumed to have enough: EC2 rejects the call if it has not.
func (b *budget) free(id vpc.SubnetID) int {
	for _, n := range b.subnets {
		if n.ID == id && n.Free >= 0 {
			return n.Free - b.taken[id]
		}
	}
	return 1 << 16
}

// lacks reports whether a subnet has fewer than want free addresses, by its count or by
// EC2's last error.
func (b *budget) lacks(id vpc.SubnetID, want int) bool {
	p, found := b.pauses.active["subnet/"+string(id)]
	return found && p.Reason == cloud.FailSubnetExhausted || b.free(id) < want
}

// attainable limits more, the number of addresses that interfaces can still take, to what
// the subnets have.
func (b *budget) attainable(more int) int {
	known, open := 0, len(b.subnets) == 0
	for _, n := range b.subnets {
		if b.lacks(n.ID, 1) {
			continue
		}
		if n.Free < 0 {
			open = true
		}
		known += max(0, b.free(n.ID))
	}
	if open {
		return more
	}
	return min(more, known)
}

// pick returns the subnet of the next interface, and what rules out others. It prefers a
// subnet with the route table of the node's own subnet, then the one with the most free
// addresses.
func (b *budget) pick() (best Subnet, found bool, ruledOut obstacles) {
	for _, n := range b.subnets {
		if p, found := b.pauses.apply("subnet/"+string(n.ID), string(cloud.CreateENI)+"/"+string(n.ID)); found {
			ruledOut = append(ruledOut, p.obstacle())
			continue
		}
		if b.free(n.ID) < 2 {
			ruledOut = append(ruledOut, fmt.Sprintf("subnet %s has %d free, a new interface needs 2", n.ID, max(0, b.free(n.ID))))
			continue
		}
		if !found || b.better(n, best) {
			best, found = n, true
		}
	}
	return best, found, ruledOut
}

func (b *budget) better(x, y Subnet) bool {
	if x.SameRoutes != y.SameRoutes {
		return x.SameRoutes
	}
	if fx, fy := b.free(x.ID), b.free(y.ID); fx != fy {
		return fx > fy
	}
	return x.ID < y.ID
}

// obstacles are what blocked growth.
type obstacles []string

// String lists each once, in parentheses; empty without any.
func (o obstacles) String() string {
	var out []string
	for _, s := range o {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	if out == nil {
		return ""
	}
	return " (" + strings.Join(out, "; ") + ")"
}
