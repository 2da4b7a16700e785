package kube

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"unique"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// peer is a pod as it is kept.
type peer struct {
	ref      policy.PodRef
	pod      *policy.Pod           // as the API has it; nil if it has no address of its own
	given    *policy.Pod           // what Take returned or will return
	account  string                // with it
	template *template             // keeps what the pod shares
	node     unique.Handle[string] // keeps the name that the pod shares
	rank     rank
}

// rank orders the pods that show the same address: the highest has it.
type rank struct {
	// reported addresses are those of the status. Any user who can make a pod can set its
	// annotations, so an address in one is not taken from a pod that reported it.
	reported bool
	started  int64 // Unix time; the greatest value if the kubelet has not said so yet
	created  int64 // Unix time
	uid      [16]byte
}

func (r rank) compare(o rank) int {
	if r.reported != o.reported {
		if r.reported {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(r.started, o.started), cmp.Compare(r.created, o.created), bytes.Compare(r.uid[:], o.uid[:]))
}

// peers are the pods with addresses, and which of them has each address. The zero value is
// empty.
type peers struct {
	pods   map[policy.PodRef]*peer
	holder map[netip.Addr]*peer
	rivals map[netip.Addr][]*peer // other pods that show the address of a holder
}

// set enters a pod, or removes it if next.pod is nil, and calls changed for each pod that is
// another for the policies now.
func (s *peers) set(next *peer, changed func(policy.PodRef, *policy.Pod)) {
	was := s.pods[next.ref]
	if was == nil && next.pod == nil {
		return
	}
	var touched []netip.Addr
	if was != nil {
		next.given, next.account = was.given, was.account
		if next.pod != nil && samePod(was.pod, next.pod) && was.template.account == next.template.account {
			next.pod, next.template, next.node = was.pod, was.template, was.node
			if was.rank == next.rank {
				return
			}
		}
		touched = was.pod.Addresses
		for _, a := range was.pod.Addresses {
			s.release(a, was)
		}
		delete(s.pods, next.ref)
	}
	if next.pod != nil {
		put(&s.pods, next.ref, next)
		for _, a := range next.pod.Addresses {
			s.claim(a, next)
		}
		touched = append(slices.Clip(touched), next.pod.Addresses...)
	}
	s.give(next, changed)
	for _, a := range touched {
		if p := s.holder[a]; p != nil {
			s.give(p, changed)
		}
		for _, p := range s.rivals[a] {
			s.give(p, changed)
		}
	}
}

// claim has the address go to the highest in rank.
func (s *peers) claim(a netip.Addr, p *peer) {
	switch h := s.holder[a]; {
	case h == nil:
		put(&s.holder, a, p)
	case before(h, p) < 0:
		s.holder[a] = p
		put(&s.rivals, a, append(s.rivals[a], h))
	default:
		put(&s.rivals, a, append(s.rivals[a], p))
	}
}

// release takes an address from a pod; the highest of its rivals has it then.
func (s *peers) release(a netip.Addr, p *peer) {
	rivals := s.rivals[a]
	if s.holder[a] != p {
		rivals = slices.DeleteFunc(rivals, func(r *peer) bool { return r == p })
	} else if len(rivals) == 0 {
		delete(s.holder, a)
	} else {
		next := slices.MaxFunc(rivals, before)
		s.holder[a] = next
		rivals = slices.DeleteFunc(rivals, func(r *peer) bool { return r == next })
	}
	if len(rivals) == 0 {
		delete(s.rivals, a)
	} else {
		s.rivals[a] = rivals
	}
}

func before(a, b *peer) int {
	return cmp.Or(a.rank.compare(b.rank), cmp.Compare(a.ref.String(), b.ref.String()))
}

// give calls changed if a pod is another now than when it was given.
func (s *peers) give(p *peer, changed func(policy.PodRef, *policy.Pod)) {
	now := s.view(p)
	account := ""
	if now != nil {
		account = p.template.account
	}
	if account == p.account && (now == p.given || now != nil && p.given != nil && samePod(now, p.given)) {
		return
	}
	p.given, p.account = now, account
	changed(p.ref, now)
}

// view is a pod with the addresses that it has: nil without any.
func (s *peers) view(p *peer) *policy.Pod {
	if p.pod == nil || s.pods[p.ref] != p {
		return nil
	}
	lost := func(a netip.Addr) bool { return s.holder[a] != p }
	if !slices.ContainsFunc(p.pod.Addresses, lost) {
		return p.pod
	}
	has := slices.DeleteFunc(slices.Clone(p.pod.Addresses), lost)
	if len(has) == 0 {
		return nil
	}
	view := *p.pod
	view.Addresses = has
	return &view
}

// samePod reports whether two pods are the same for policies.
func samePod(a, b *policy.Pod) bool {
	return a.Ref() == b.Ref() && a.Node == b.Node && slices.Equal(a.Addresses, b.Addresses) &&
		slices.Equal(a.Ports, b.Ports) && maps.Equal(a.Labels, b.Labels)
}
