package nfnetlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// ForeignRule is what identifies a rule of another program: its expressions may be ones that
// package nftables does not describe.
type ForeignRule struct {
	Chain string
	// Comment is that of nft(8) or of iptables-nft.
	Comment string
	// To is the chain that the rule leads to; empty if it leads to none.
	To string
	// DNAT is the address that an iptables rule gives to packets as their destination; zero if
	// it gives none.
	DNAT   netip.Addr
	handle uint64
}

// Foreign lists the chains of a table of another program, and its rules; nothing if there is
// no such table.
func (c *Conn) Foreign(name nftables.TableName) (chains []string, rules []ForeignRule, err error) {
	family, err := familyOf(name.Family)
	if err != nil {
		return nil, nil, err
	}
	if _, err := c.batch.ListTableOfFamily(name.Name, family); errors.Is(err, unix.ENOENT) {
		return nil, nil, nil
	}
	found, err := c.readChains(name, family)
	if err != nil {
		return nil, nil, err
	}
	for _, ch := range found {
		chains = append(chains, ch.Name)
	}
	rules, err = c.foreignRules(name)
	return chains, rules, err
}

// ForeignChain lists the rules of one chain of another program; nothing if there is no such
// chain. Other chains of the table can have many thousands, which the kernel does not copy.
func (c *Conn) ForeignChain(name nftables.TableName, chain string) ([]ForeignRule, error) {
	return c.foreignRules(name, text(unix.NFTA_RULE_CHAIN, chain))
}

// foreignRules lists the rules of a table that attributes select.
func (c *Conn) foreignRules(name nftables.TableName, which ...netlink.Attribute) (rules []ForeignRule, err error) {
	replies, err := c.dump(unix.NFT_MSG_GETRULE, name, append(which, text(unix.NFTA_RULE_TABLE, name.Name))...)
	if err != nil {
		return nil, fmt.Errorf("list rules of table %s: %w", name, err)
	}
	for _, m := range replies {
		r, err := foreignRule(m)
		if err != nil {
			return nil, fmt.Errorf("list rules of table %s: %w", name, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func foreignRule(m netlink.Message) (r ForeignRule, err error) {
	attrs, err := attributes(m)
	if err != nil {
		return r, err
	}
	for attrs.Next() {
		switch attrs.Type() {
		case unix.NFTA_RULE_CHAIN:
			r.Chain = attrs.String()
		case unix.NFTA_RULE_HANDLE:
			r.handle = attrs.Uint64()
		case unix.NFTA_RULE_USERDATA:
			if comment, ok := userdata.GetString(attrs.Bytes(), userdata.TypeComment); ok {
				r.Comment = comment
			}
		case unix.NFTA_RULE_EXPRESSIONS:
			attrs.Nested(func(list *netlink.AttributeDecoder) error {
				code, err := parseExpressions(m.Data[0], list)
				for _, e := range code {
					r.read(m.Data[0], e)
				}
				return err
			})
		}
	}
	return r, attrs.Err()
}

// read takes the comment, the chain and the destination out of an expression.
func (r *ForeignRule) read(family byte, e expression) {
	if v, ok := e.expr.(*expr.Verdict); ok && (v.Kind == expr.VerdictJump || v.Kind == expr.VerdictGoto) {
		r.To = v.Chain
	}
	switch e.name { // extensions of iptables; those that the library does not describe are skipped
	case "match":
		var m expr.Match
		if expr.Unmarshal(family, e.data, &m) != nil {
			return
		}
		if comment, ok := m.Info.(*xt.Comment); ok {
			r.Comment = string(*comment)
		}
	case "target":
		var t expr.Target
		if expr.Unmarshal(family, e.data, &t) == nil && t.Name == "DNAT" {
			r.DNAT = destination(t.Info)
		}
	}
}

// destination is the first address of the range that a DNAT target has.
func destination(info xt.InfoAny) netip.Addr {
	var first net.IP
	switch i := info.(type) {
	case *xt.NatRange:
		first = i.MinIP
	case *xt.NatRange2:
		first = i.MinIP
	case *xt.NatIPv4MultiRangeCompat:
		if len(*i) > 0 {
			first = (*i)[0].MinIP
		}
	}
	addr, _ := netip.AddrFromSlice(first)
	return addr.Unmap()
}

// DeleteForeign deletes rules of another program, and chains with what is in them, in one
// transaction. Nothing else may lead to the chains.
func (c *Conn) DeleteForeign(name nftables.TableName, rules []ForeignRule, chains []string) error {
	table, err := tableOf(name)
	if err != nil || len(rules)+len(chains) == 0 {
		return err
	}
	for _, r := range rules {
		if err := c.batch.DelRule(&nft.Rule{Table: table, Chain: &nft.Chain{Name: r.Chain}, Handle: r.handle}); err != nil {
			c.reset() // drops what is queued
			return fmt.Errorf("delete a rule of chain %s: %w", r.Chain, err)
		}
	}
	for _, chain := range chains {
		c.batch.FlushChain(&nft.Chain{Table: table, Name: chain})
	}
	for _, chain := range chains {
		c.batch.DelChain(&nft.Chain{Table: table, Name: chain})
	}
	if err := c.batch.Flush(); err != nil {
		c.reset()
		return fmt.Errorf("delete %d rules and %d chains of table %s: %w", len(rules), len(chains), name, err)
	}
	return nil
}
