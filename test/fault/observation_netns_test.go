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

// observation is the state of a node as observed from outside, and of its account.
type observation struct {
	pods     []observedPod              // ADD succeeded, DEL not requested
	ec2      map[vpc.ENIID][]netip.Addr // secondary addresses of the node's interfaces
	detached []vpc.ENIID                // interfaces of the account on no instance
	ledger   introspection.Ledger       // as the agent reports it
	kernel   map[string][]string        // objects in the node's kernel, by kind
	spooled  []string                   // DELs in the spool
}

// observedPod is a pod with the addresses of its own kernel interface.
type observedPod struct {
	container, name string
	answered        netip.Addr
	has             []netip.Addr
}

func (v *victim) observe() (s observation, err error) {
	if s, err = v.observeOutside(); err != nil {
		return s, err
	}
	return s, v.Get(introspection.LedgerPath, &s.ledger)
}

// observeOutside observes everything except the agent's ledger, so it needs no agent.
func (v *victim) observeOutside() (s observation, err error) {
	v.mu.Lock()
	pods := slices.Collect(maps.Values(v.pods))
	v.mu.Unlock()
	for _, p := range pods {
		seen, err := observePod(p)
		if err != nil {
			return s, err
		}
		s.pods = append(s.pods, seen)
	}
	slices.SortFunc(s.pods, func(a, b observedPod) int { return strings.Compare(a.container, b.container) })
	s.ec2 = map[vpc.ENIID][]netip.Addr{}
	for id, i := range v.State().Interfaces {
		if i.Attachment == nil {
			s.detached = append(s.detached, id)
			continue
		}
		s.ec2[id] = i.IPv4.Addresses[1:]
	}
	if s.kernel, err = v.observeKernel(); err != nil {
		return s, err
	}
	s.spooled, err = filepath.Glob(filepath.Join(v.Dir, "state", "spool", "*.del*"))
	return s, err
}

func observePod(p *node.Pod) (observedPod, error) {
	seen := observedPod{container: p.RT.ContainerID, name: strings.TrimPrefix(p.RT.ContainerID, "sandbox-"), answered: p.Addr}
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

// Kinds of objects that the kernel has for pods and interfaces.
const (
	podLinks   = "pod links"
	rulesTo    = "rules to a pod"
	rulesFrom  = "rules from a pod"
	podRoutes  = "routes to a pod"
	eniTables  = "route tables of interfaces"
	sources    = "allowed source addresses"
	podsOfSNAT = "pod addresses in SNAT"
	arpSources = "allowed ARP source addresses"
)

// observeKernel reads our objects in the node's kernel.
func (v *victim) observeKernel() (map[string][]string, error) {
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
	if err := readSets(ruleset, note); err != nil {
		return nil, err
	}
	for kind, list := range have {
		slices.Sort(list)
		have[kind] = slices.Compact(list)
	}
	return have, nil
}

// readSets reads the addresses in our nftables sets.
func readSets(raw []byte, note func(kind, what string)) error {
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

// pendingWork returns an error if the pool still has something to do.
func (s observation) pendingWork() error {
	held := 0
	for _, e := range s.ledger.ENIs {
		held += len(e.Addresses)
		if e.State == "detaching" || e.State == "deleting" {
			return fmt.Errorf("%s is %s: EC2 takes its time to detach it", e.ID, e.State)
		}
	}
	if most := len(s.pods) + spare; held > most || len(s.ledger.Pool.Steps) > 0 {
		return fmt.Errorf("%d addresses are held, want at most %d; steps %v: %s", held, most, s.ledger.Pool.Steps, s.ledger.Pool.Why)
	}
	return nil
}

// problems returns all violations on a node without pending work.
func (s observation) problems() error {
	return errors.Join(s.addressProblems(), s.ledgerProblems(), s.kernelProblems(), s.leaks())
}

// addressProblems checks that every pod has the address of its ADD result, that EC2
// assigned it to the node, and that no other pod has it.
func (s observation) addressProblems() (problems error) {
	holders := map[netip.Addr]string{}
	for _, p := range s.pods {
		if !slices.Equal(p.has, []netip.Addr{p.answered}) {
			problems = errors.Join(problems, fmt.Errorf("pod %s was assigned %s and has %v", p.name, p.answered, p.has))
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

// ledgerProblems checks that the agent's ledger agrees with EC2 and the pods.
func (s observation) ledgerProblems() (problems error) {
	pods := map[netip.Addr]string{}
	for _, p := range s.pods {
		pods[p.answered] = p.container
	}
	recorded := map[vpc.ENIID][]netip.Addr{}
	for _, e := range s.ledger.ENIs {
		id := vpc.ENIID(e.ID)
		recorded[id] = nil
		if e.State != "ready" {
			problems = errors.Join(problems, fmt.Errorf("%s is %s in the ledger: %s", e.ID, e.State, e.Why))
		}
		for _, a := range e.Addresses {
			recorded[id] = append(recorded[id], a.Address)
			container := pods[a.Address]
			switch {
			case a.State == "assigned" && a.Container != container:
				problems = errors.Join(problems, fmt.Errorf("%s belongs to %q in the ledger, and to %q by the pods", a.Address, a.Container, container))
			case a.State != "assigned" && container != "":
				problems = errors.Join(problems, fmt.Errorf("%s is %s in the ledger and assigned to %s", a.Address, a.State, container))
			case a.State != "assigned" && a.State != "free" && a.State != "cooling":
				problems = errors.Join(problems, fmt.Errorf("%s is %s in the ledger: %s", a.Address, a.State, a.Why))
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(union(recorded, s.ec2))) {
		have, inLedger := recorded[id]
		atEC2, inEC2 := s.ec2[id]
		if inLedger != inEC2 || !slices.Equal(sorted(have), sorted(atEC2)) {
			problems = errors.Join(problems, fmt.Errorf("%s: in the ledger: %v, with %v; in EC2: %v, with %v", id, inLedger, have, inEC2, atEC2))
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

// kernelProblems checks that the kernel has exactly the objects that the pods and
// interfaces need.
func (s observation) kernelProblems() (problems error) {
	var links, addresses []string
	for _, p := range s.pods {
		links = append(links, endpoint.LinkName(endpoint.DefaultLinkPrefix, "default", p.name))
		addresses = append(addresses, p.answered.String())
	}
	want := map[string][]string{podLinks: links}
	for _, kind := range []string{rulesTo, podRoutes, sources, podsOfSNAT, arpSources} {
		want[kind] = addresses
	}
	for _, e := range s.ledger.ENIs {
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

// leaks checks for detached interfaces and for spooled DELs that were not executed.
func (s observation) leaks() (problems error) {
	for _, id := range s.detached {
		problems = errors.Join(problems, fmt.Errorf("%s is attached to no instance: it leaked", id))
	}
	for _, path := range s.spooled {
		problems = errors.Join(problems, fmt.Errorf("the DEL %s was not executed", filepath.Base(path)))
	}
	return problems
}
