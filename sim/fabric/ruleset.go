package fabric

import (
	"maps"
	"slices"
	"strconv"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// ruleset is a table under construction; its sets and chains are by name.
type ruleset struct {
	name   nftables.TableName
	sets   map[string]*nftables.Set
	chains map[string]*nftables.Chain
}

func newRuleset(family nftables.Family) *ruleset {
	return &ruleset{
		name: nftables.TableName{Family: family, Name: tableName},
		sets: map[string]*nftables.Set{}, chains: map[string]*nftables.Chain{},
	}
}

// table is the finished table.
func (r *ruleset) table() nftables.Table {
	t := nftables.Table{TableName: r.name}
	for _, name := range slices.Sorted(maps.Keys(r.sets)) {
		t.Sets = append(t.Sets, *r.sets[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.chains)) {
		t.Chains = append(t.Chains, *r.chains[name])
	}
	return t
}

// set adds a set, once.
func (r *ruleset) set(name string, key ...nftables.Type) *nftables.Set {
	s, ok := r.sets[name]
	if !ok {
		s = &nftables.Set{Name: name, Key: key}
		r.sets[name] = s
	}
	return s
}

// add adds an element to a set; parts make up its key.
func add(s *nftables.Set, parts ...nftables.Data) {
	s.Elements = append(s.Elements, nftables.Element{Key: nftables.Concat(parts...)})
}

// rule appends a rule to a chain.
func (r *ruleset) rule(chain string, exprs ...nftables.Expr) {
	c, ok := r.chains[chain]
	if !ok {
		c = &nftables.Chain{Name: chain}
		r.chains[chain] = c
	}
	c.Rules = append(c.Rules, nftables.NewRule(exprs...))
}

// base adds a chain at a hook. Its policy is accept and its last rule drops: the kernel
// activates a new base chain with its policy shortly before the rules of the same
// transaction.
func (r *ruleset) base(name string, point nftables.Point, priority int) {
	r.chains[name] = &nftables.Chain{Name: name, Hook: &nftables.Hook{Type: nftables.Filter, Point: point, Priority: priority}}
}

// Reasons for a drop; each has a set that counts by device.
const (
	dropSpoofed    = "drops-spoofed"
	dropMisrouted  = "drops-misrouted"
	dropEgress     = "drops-egress"
	dropIngress    = "drops-ingress"
	dropUnroutable = "drops-unroutable"
	dropStale      = "drops-stale"
	dropService    = "drops-service"
)

func dropReasons() []string {
	return []string{dropSpoofed, dropMisrouted, dropEgress, dropIngress, dropUnroutable, dropStale, dropService}
}

// count adds the set that counts the packets dropped for a reason, by device.
func (r *ruleset) count(reason string, links map[string]linkPlan) {
	counts := r.set(reason, nftables.TypeIfname)
	counts.Counter = true
	for name := range links {
		add(counts, nftables.Ifname(name))
	}
}

// drop counts the packet against a device and drops it.
func (r *ruleset) drop(chain string, device nftables.Field, reason string) {
	r.rule(chain, in(reason, device), verdict(nftables.Drop))
	r.rule(chain, verdict(nftables.Drop))
}

// senders adds the sets of what each port may send from: "own" is its MAC, "legit" its
// MAC with one of its addresses, and "unchecked" its MAC if its source check is off.
func (r *ruleset) senders(p *plan, families ...vpc.Family) {
	for _, f := range families {
		for _, bits := range p.lengths(f) {
			r.set(sized("legit", f, bits), nftables.TypeIfname, nftables.TypeEther, addrType(f))
		}
	}
	own := r.set("own", nftables.TypeIfname, nftables.TypeEther)
	unchecked := r.set("unchecked", nftables.TypeIfname, nftables.TypeEther)
	for name, l := range p.links {
		device, mac := nftables.Ifname(name), nftables.Ether(l.port.MAC)
		add(own, device, mac)
		if !l.port.SourceDestCheck {
			add(unchecked, device, mac)
		}
		for _, held := range holdings(l.port) {
			f := vpc.FamilyOf(held.Addr())
			if slices.Contains(families, f) {
				add(r.sets[sized("legit", f, held.Bits())], device, mac, nftables.Addr(held.Addr()))
			}
		}
	}
}

func sized(name string, f vpc.Family, bits int) string {
	return name + "-" + f.String() + "-" + strconv.Itoa(bits)
}
