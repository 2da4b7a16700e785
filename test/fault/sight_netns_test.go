//go:build netns

package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/test/node"
)

// sight is what can be seen of a node from outside, and of its account.
type sight struct {
	pods    []seenPod                  // whose ADD was answered and whose DEL was not asked for
	ec2     map[vpc.ENIID][]netip.Addr // secondary addresses of the node's interfaces
	loose   []vpc.ENIID                // interfaces of the account on no instance
	book    introspection.Book         // what the agent says
	kernel  map[string][]string        // what the node's kernel holds, by kind
	spooled []string                   // DELs that wait
}

// seenPod is a pod with the addresses its own kernel says it has.
type seenPod struct {
	container, name string
	answered        netip.Addr
	has             []netip.Addr
}

func (v *victim) look() (s sight, err error) {
	if s, err = v.lookOutside(); err != nil {
		return s, err
	}
	return s, v.Get(introspection.BookPath, &s.book)
}

// lookOutside sees all but the agent's book: it needs no agent.
func (v *victim) lookOutside() (s sight, err error) {
	v.mu.Lock()
	pods := slices.Collect(maps.Values(v.pods))
	v.mu.Unlock()
	for _, p := range pods {
		seen, err := seePod(p)
		if err != nil {
			return s, err
		}
		s.pods = append(s.pods, seen)
	}
	slices.SortFunc(s.pods, func(a, b seenPod) int { return strings.Compare(a.container, b.container) })
	s.ec2 = map[vpc.ENIID][]netip.Addr{}
	for id, i := range v.State().Interfaces {
		if i.Attachment == nil {
			s.loose = append(s.loose, id)
			continue
		}
		s.ec2[id] = i.IPv4[1:]
	}
	if s.kernel, err = v.seeKernel(); err != nil {
		return s, err
	}
	s.spooled, err = filepath.Glob(filepath.Join(v.Dir, "state", "spool", "*.del*"))
	return s, err
}

func seePod(p *node.Pod) (seenPod, error) {
	seen := seenPod{container: p.RT.ContainerID, name: strings.TrimPrefix(p.RT.ContainerID, "sandbox-"), answered: p.Addr}
	err := p.Run(func() error {
		eth0, err := netlink.LinkByName(p.RT.IfName)
		if err != nil {
			return fmt.Errorf("pod %s: %w", seen.container, err)
		}
		list, err := netlink.AddrList(eth0, netlink.FAMILY_V4)
		for _, a := range list {
			addr, _ := netip.AddrFromSlice(a.IP)
			seen.has = append(seen.has, addr.Unmap())
		}
		return err
	})
	return seen, err
}

// Kinds of what the kernel holds for pods and interfaces.
const (
	podLinks   = "pod links"
	rulesTo    = "rules to a pod"
	rulesFrom  = "rules from a pod"
	podRoutes  = "routes to a pod"
	eniTables  = "route tables of interfaces"
	sources    = "addresses that may be sent from"
	podsOfSNAT = "addresses known to SNAT"
	arpSources = "addresses ARP may tell of"
)

// seeKernel reads what the kernel of the node holds that is ours.
func (v *victim) seeKernel() (map[string][]string, error) {
	have := map[string][]string{}
	note := func(kind, what string) { have[kind] = append(have[kind], what) }
	var ruleset []byte
	err := v.NS.Run(func() error {
		links, err := netlink.LinkList()
		names := map[int]string{}
		for _, l := range links {
			names[l.Attrs().Index] = l.Attrs().Name
			if _, ours := hostnet.ParseAlias(l.Attrs().Alias); ours || l.Attrs().Group == hostnet.LinkGroupPod || l.Type() == "veth" && strings.HasPrefix(l.Attrs().Name, "eni") {
				note(podLinks, l.Attrs().Name)
			}
		}
		rules, ruleErr := netlink.RuleList(netlink.FAMILY_V4)
		for _, r := range rules {
			switch {
			case r.Priority == hostnet.RuleToPod && r.Dst != nil:
				note(rulesTo, r.Dst.IP.String())
			case r.Priority == hostnet.RuleFromPod && r.Src != nil:
				note(rulesFrom, r.Src.IP.String())
			}
		}
		var routeErr error
		for _, table := range []int{hostnet.TableMain, hostnet.TableENIOffset + 1, hostnet.TableENIOffset + 2} {
			list, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
			routeErr = errors.Join(routeErr, err)
			for _, r := range list {
				if table != hostnet.TableMain {
					note(eniTables, fmt.Sprint(table))
				} else if r.Protocol == hostnet.RouteProtocol && r.Dst != nil && strings.HasPrefix(names[r.LinkIndex], "eni") {
					note(podRoutes, r.Dst.IP.String())
				}
			}
		}
		if err = errors.Join(err, ruleErr, routeErr); err != nil {
			return err
		}
		ruleset, err = exec.Command("nft", "-j", "list", "ruleset").Output()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the node's kernel: %w", err)
	}
	if err := seeSets(ruleset, note); err != nil {
		return nil, err
	}
	for kind, list := range have {
		slices.Sort(list)
		have[kind] = slices.Compact(list)
	}
	return have, nil
}

// seeSets notes the addresses in our sets of nftables.
func seeSets(raw []byte, note func(kind, what string)) error {
	var ruleset struct {
		Objects []struct {
			Set *struct {
				Family, Table, Name string
				Elem                []any
			}
		} `json:"nftables"`
	}
	if err := json.Unmarshal(raw, &ruleset); err != nil {
		return fmt.Errorf("read the node's nftables: %w", err)
	}
	kinds := map[string]string{"inet/sources4": sources, "inet/pods4": podsOfSNAT, "arp/sources": arpSources}
	for _, o := range ruleset.Objects {
		if o.Set == nil || o.Set.Table != hostnet.Table {
			continue
		}
		kind, ok := kinds[o.Set.Family+"/"+o.Set.Name]
		for _, element := range o.Set.Elem {
			if a := addressIn(element); ok && a != "" {
				note(kind, a)
			}
		}
	}
	return nil
}

// addressIn finds the address in an element of a set.
func addressIn(element any) string {
	switch e := element.(type) {
	case string:
		if _, err := netip.ParseAddr(e); err == nil {
			return e
		}
	case []any:
		for _, part := range e {
			if a := addressIn(part); a != "" {
				return a
			}
		}
	case map[string]any:
		for _, part := range e {
			if a := addressIn(part); a != "" {
				return a
			}
		}
	}
	return ""
}

// unrest says what the pool still has to do.
func (s sight) unrest() error {
	held := 0
	for _, e := range s.book.ENIs {
		held += len(e.Addresses)
	}
	if most := len(s.pods) + spare; held > most || len(s.book.Pool.Steps) > 0 {
		return fmt.Errorf("%d addresses are held, at most %d are to be; steps %v: %s", held, most, s.book.Pool.Steps, s.book.Pool.Why)
	}
	return nil
}

// problems says all that is not as it must be on a node at rest.
func (s sight) problems() error {
	return errors.Join(s.addressProblems(), s.bookProblems(), s.kernelProblems(), s.leaks())
}

// addressProblems: every pod has the address it was answered, EC2 has given it to
// the node, and nobody else has it.
func (s sight) addressProblems() (problems error) {
	holders := map[netip.Addr]string{}
	for _, p := range s.pods {
		if !slices.Equal(p.has, []netip.Addr{p.answered}) {
			problems = errors.Join(problems, fmt.Errorf("pod %s was given %s and has %v", p.name, p.answered, p.has))
		}
		for _, a := range append(p.has, p.answered) {
			if other := holders[a]; other != "" && other != p.name {
				problems = errors.Join(problems, fmt.Errorf("%s is held twice: by %s and %s", a, other, p.name))
			}
			holders[a] = p.name
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(s.ec2)), func(list []netip.Addr) bool { return slices.Contains(list, p.answered) }) {
			problems = errors.Join(problems, fmt.Errorf("%s of pod %s is lost: EC2 does not have it on the node", p.answered, p.name))
		}
	}
	return problems
}

// bookProblems: the agent's book is what EC2 and the pods say.
func (s sight) bookProblems() (problems error) {
	pods := map[netip.Addr]string{}
	for _, p := range s.pods {
		pods[p.answered] = p.container
	}
	booked := map[vpc.ENIID][]netip.Addr{}
	for _, e := range s.book.ENIs {
		id := vpc.ENIID(e.ID)
		booked[id] = nil
		if e.State != "ready" {
			problems = errors.Join(problems, fmt.Errorf("%s is %s in the book: %s", e.ID, e.State, e.Why))
		}
		for _, a := range e.Addresses {
			booked[id] = append(booked[id], a.Address)
			container := pods[a.Address]
			switch {
			case a.State == "assigned" && a.Container != container:
				problems = errors.Join(problems, fmt.Errorf("%s is %q's in the book, of the pods it is %q's", a.Address, a.Container, container))
			case a.State != "assigned" && container != "":
				problems = errors.Join(problems, fmt.Errorf("%s is %s in the book and %s has it", a.Address, a.State, container))
			case a.State != "assigned" && a.State != "free" && a.State != "cooling":
				problems = errors.Join(problems, fmt.Errorf("%s is %s in the book: %s", a.Address, a.State, a.Why))
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(union(booked, s.ec2))) {
		have, inBook := booked[id]
		atEC2, there := s.ec2[id]
		if inBook != there || !slices.Equal(sorted(have), sorted(atEC2)) {
			problems = errors.Join(problems, fmt.Errorf("%s: the book has it: %v, with %v; EC2: %v, with %v", id, inBook, have, there, atEC2))
		}
	}
	return problems
}

func union[K comparable, V any](a, b map[K]V) map[K]V {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

func sorted(list []netip.Addr) []netip.Addr {
	return slices.SortedFunc(slices.Values(list), netip.Addr.Compare)
}

// kernelProblems: the kernel holds what the pods and interfaces need, no more and
// no less.
func (s sight) kernelProblems() (problems error) {
	var links, addresses []string
	for _, p := range s.pods {
		links = append(links, endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", p.name))
		addresses = append(addresses, p.answered.String())
	}
	want := map[string][]string{podLinks: links}
	for _, kind := range []string{rulesTo, podRoutes, sources, podsOfSNAT, arpSources} {
		want[kind] = addresses
	}
	for _, e := range s.book.ENIs {
		if e.Device == 0 {
			continue
		}
		want[eniTables] = append(want[eniTables], fmt.Sprint(e.Table))
		for _, a := range e.Addresses {
			if a.State == "assigned" {
				want[rulesFrom] = append(want[rulesFrom], a.Address.String())
			}
		}
	}
	for _, kind := range []string{podLinks, rulesTo, rulesFrom, podRoutes, eniTables, sources, podsOfSNAT, arpSources} {
		have, needed := s.kernel[kind], slices.Sorted(slices.Values(want[kind]))
		if !slices.Equal(have, needed) {
			problems = errors.Join(problems, fmt.Errorf("%s: the kernel has %v, the node needs %v", kind, have, needed))
		}
	}
	return problems
}

// leaks: interfaces on no instance, DELs that nobody carries out.
func (s sight) leaks() (problems error) {
	for _, id := range s.loose {
		problems = errors.Join(problems, fmt.Errorf("%s is on no instance: it leaked", id))
	}
	for _, path := range s.spooled {
		problems = errors.Join(problems, fmt.Errorf("the DEL %s was never carried out", filepath.Base(path)))
	}
	return problems
}
