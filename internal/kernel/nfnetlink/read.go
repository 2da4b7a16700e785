package nfnetlink

import (
	"errors"
	"fmt"

	nft "github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/nftables"
)

// readRounds bounds how often Read starts over because a table changes meanwhile.
const readRounds = 10

// Read returns a table as the kernel has it, nil if there is none. It is of one
// moment: changes while it reads make it start over.
func (c *Conn) Read(name nftables.TableName) (*nftables.Table, error) {
	for range readRounds {
		before, err := c.Generation()
		if err != nil {
			return nil, err
		}
		t, err := c.readTable(name)
		after, genErr := c.Generation()
		if err = errors.Join(err, genErr); before != after && genErr == nil {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read nftables table %s: %w", name, err)
		}
		return t, nil
	}
	return nil, fmt.Errorf("read nftables table %s: %w, %d times", name, ErrChanged, readRounds)
}

func (c *Conn) readTable(name nftables.TableName) (*nftables.Table, error) {
	family, err := familyOf(name.Family)
	if err != nil {
		return nil, err
	}
	found, err := c.batch.ListTableOfFamily(name.Name, family)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t := &nftables.Table{TableName: name, Dormant: found.Flags != 0}
	if t.Sets, err = c.readSets(name); err != nil {
		return nil, err
	}
	if t.Chains, err = c.readChains(name, family); err != nil {
		return nil, err
	}
	rules, err := c.readRules(name, "")
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		if chain := t.Chain(r.chain); chain != nil {
			chain.Rules = append(chain.Rules, r.Rule)
		}
	}
	return t, nil
}

func (c *Conn) readChains(name nftables.TableName, family nft.TableFamily) ([]nftables.Chain, error) {
	all, err := c.batch.ListChainsOfTableFamily(family)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	var chains []nftables.Chain
	for _, ch := range all {
		if ch.Table.Name == name.Name && ch.Table.Family == family {
			chains = append(chains, nftables.Chain{Name: ch.Name, Hook: hookOf(name.Family, ch)})
		}
	}
	return chains, nil
}

func hookOf(f nftables.Family, c *nft.Chain) *nftables.Hook {
	if c.Hooknum == nil {
		return nil
	}
	h := &nftables.Hook{Type: nftables.ChainType(c.Type), Policy: nftables.PolicyAccept}
	if c.Policy != nil && *c.Policy == nft.ChainPolicyDrop {
		h.Policy = nftables.PolicyDrop
	}
	if c.Priority != nil {
		h.Priority = int(*c.Priority)
	}
	names := points(f)
	if n := int(*c.Hooknum); n < len(names) {
		h.Point = names[n]
	} else {
		h.Point = nftables.Point(fmt.Sprintf("hook#%d", n))
	}
	return h
}

// rule is a rule in the kernel.
type rule struct {
	nftables.Rule
	chain  string
	handle uint64
}

// readRules lists the rules of a chain, or of all chains of the table if chain is
// empty, in order.
func (c *Conn) readRules(name nftables.TableName, chain string) ([]rule, error) {
	attrs := []netlink.Attribute{text(unix.NFTA_RULE_TABLE, name.Name)}
	if chain != "" {
		attrs = append(attrs, text(unix.NFTA_RULE_CHAIN, chain))
	}
	replies, err := c.dump(unix.NFT_MSG_GETRULE, name, attrs...)
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	d := newDecoder()
	rules := make([]rule, len(replies))
	for i, m := range replies {
		if rules[i], err = d.message(m); err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
	}
	return rules, nil
}

func (d *decoder) message(m netlink.Message) (r rule, err error) {
	attrs, err := attributes(m)
	if err != nil {
		return r, err
	}
	for attrs.Next() {
		switch attrs.Type() {
		case unix.NFTA_RULE_CHAIN:
			r.chain = attrs.String()
		case unix.NFTA_RULE_HANDLE:
			r.handle = attrs.Uint64()
		case unix.NFTA_RULE_USERDATA:
			r.Comment, _ = userdata.GetString(attrs.Bytes(), userdata.TypeComment)
		case unix.NFTA_RULE_EXPRESSIONS:
			attrs.Nested(func(list *netlink.AttributeDecoder) error {
				code, err := parseExpressions(m.Data[0], list)
				r.Exprs = d.rule(code)
				return err
			})
		}
	}
	return r, attrs.Err()
}

// expression is one of the kernel; expr is nil if none of ours encodes to it.
type expression struct {
	name string
	expr expr.Any
	data []byte // as the kernel has it
}

func parseExpressions(family byte, list *netlink.AttributeDecoder) (code []expression, err error) {
	for list.Next() {
		list.Nested(func(one *netlink.AttributeDecoder) error {
			var e expression
			var data []byte
			for one.Next() {
				switch one.Type() {
				case unix.NFTA_EXPR_NAME:
					e.name = one.String()
				case unix.NFTA_EXPR_DATA:
					data = one.Bytes()
				}
			}
			e.data = data
			if e.expr = newExpr(e.name); e.expr != nil {
				if err := expr.Unmarshal(family, data, e.expr); err != nil {
					return fmt.Errorf("expression %s: %w", e.name, err)
				}
			}
			if imm, ok := e.expr.(*expr.Immediate); ok && imm.Register == unix.NFT_REG_VERDICT {
				e.expr = &expr.Verdict{}
				if err := expr.Unmarshal(family, data, e.expr); err != nil {
					return fmt.Errorf("verdict: %w", err)
				}
			}
			code = append(code, e)
			return one.Err()
		})
	}
	return code, list.Err()
}

// newExpr returns an expression to read into, nil for one that is never ours.
func newExpr(name string) expr.Any {
	switch name {
	case "meta":
		return &expr.Meta{}
	case "ct":
		return &expr.Ct{}
	case "payload":
		return &expr.Payload{}
	case "fib":
		return &expr.Fib{}
	case "bitwise":
		return &expr.Bitwise{}
	case "cmp":
		return &expr.Cmp{}
	case "lookup":
		return &expr.Lookup{}
	case "match":
		return &expr.Match{}
	case "immediate":
		return &expr.Immediate{}
	case "nat":
		return &expr.NAT{}
	case "counter":
		return &expr.Counter{}
	case "reject":
		return &expr.Reject{}
	default:
		return nil
	}
}
