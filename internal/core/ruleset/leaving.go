package ruleset

import "github.com/trunkline/trunkline/internal/kernel/nftables"

// Leaving returns what is left of one of our tables for the pods that still run once no agent
// does: SNAT and the marks of their connections, so that they reach what is outside of the
// VPC before another CNI's rules are there, and beside them. A connection that one chain has
// translated is not translated again, and AWS's daemon sets the same bit in the mark of a
// connection. ok is false if nothing is left of the table.
//
// The restrictions go: no agent adds elements for the pods of the next CNI, and they would be
// cut off.
func Leaving(have nftables.Table) (left nftables.Table, ok bool) {
	left.TableName = have.TableName
	if have.Family != nftables.Inet {
		return left, false
	}
	for _, name := range []string{chainNodePort, chainConnmark, chainConnmarkPod, chainTranslate} {
		if c := have.Chain(name); c != nil {
			left.Chains = append(left.Chains, *c)
		}
	}
	for _, name := range []string{setPods4, setKept4} {
		if s := have.Set(name); s != nil {
			left.Sets = append(left.Sets, *s)
		}
	}
	return left, len(left.Chains) > 0
}
