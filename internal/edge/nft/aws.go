package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/kernel/nfnetlink"
	"github.com/trunkline/trunkline/internal/kernel/nftables"
	"github.com/trunkline/trunkline/internal/kernel/xtables"
)

// awsTable is the table in which AWS's daemon marks connections where iptables is iptables-nft.
// Source: aws/amazon-vpc-cni-k8s v1.23.1, pkg/networkutils/nftables_connmark.go.
func awsTable() nftables.TableName {
	return nftables.TableName{Family: nftables.IPv4, Name: "aws-cni"}
}

// iptablesTables are the tables of iptables-nft in which AWS's daemon has rules.
// Source: pkg/networkutils/network.go and iptables_connmark.go there.
func iptablesTables() []nftables.TableName {
	return []nftables.TableName{natTable(), {Family: nftables.IPv4, Name: "mangle"}}
}

// awsChain reports whether AWS's daemon made a chain.
func awsChain(name string) bool {
	return strings.HasPrefix(name, "AWS-SNAT-CHAIN-") || strings.HasPrefix(name, "AWS-CONNMARK-CHAIN-")
}

// awsRule reports whether AWS's daemon made a rule of a chain that is not its own.
func awsRule(r nfnetlink.ForeignRule) bool {
	return !awsChain(r.Chain) && (awsChain(r.To) || awsComment(r.Comment))
}

// awsComment reports whether a rule with a comment is one of AWS's daemon.
func awsComment(comment string) bool {
	comments := []string{"AWS, primary ENI", "AWS, CONNMARK", "AWS, outbound connections", "AWS SNAT CHAIN"}
	return slices.Contains(comments, comment)
}

// RemoveAWS deletes the SNAT and the marks of connections that AWS's daemon made for the pods
// of its plugin, and returns what it deleted. They match links by the beginning of a name, which
// those of our pods have too, and would override our settings. No pod of AWS's plugin may be
// left. Rules of iptables-legacy are not in nftables: they are removed from its own tables.
func (f *Firewall) RemoveAWS(ctx context.Context) (removed []string, err error) {
	err = f.alone(ctx, func() error {
		have, err := f.conn.Read(awsTable())
		if err != nil {
			return err
		}
		if have != nil {
			if err := f.conn.Commit(nftables.DeleteTable{Table: awsTable()}); err != nil {
				return err
			}
			removed = append(removed, "table "+awsTable().String())
		}
		var errs []error
		for _, name := range iptablesTables() {
			gone, err := f.removeAWSFrom(name)
			removed, errs = append(removed, gone...), append(errs, err)
		}
		return errors.Join(errs...)
	})
	// Not under f.alone, which the ADDs of pods need: another program may hold iptables' lock.
	gone, legacyErr := f.removeLegacyAWS(ctx)
	removed, err = append(removed, gone...), errors.Join(err, legacyErr)
	if err != nil {
		return removed, fmt.Errorf("remove the rules of AWS's daemon: %w", err)
	}
	return removed, nil
}

// removeAWSFrom deletes what AWS's daemon has in one table of iptables.
func (f *Firewall) removeAWSFrom(name nftables.TableName) (removed []string, err error) {
	chains, rules, err := f.conn.Foreign(name)
	if err != nil {
		return nil, err
	}
	rules = slices.DeleteFunc(rules, func(r nfnetlink.ForeignRule) bool { return !awsRule(r) })
	chains = slices.DeleteFunc(chains, func(c string) bool { return !awsChain(c) })
	if err := f.conn.DeleteForeign(name, rules, chains); err != nil {
		return nil, err
	}
	for _, r := range rules {
		removed = append(removed, fmt.Sprintf("rule %q of chain %s in table %s", r.Comment, r.Chain, name))
	}
	for _, c := range chains {
		removed = append(removed, fmt.Sprintf("chain %s in table %s", c, name))
	}
	return removed, nil
}

// removeLegacyAWS deletes what AWS's daemon has in iptables-legacy, and keeps the error for
// LegacyAWS.
func (f *Firewall) removeLegacyAWS(ctx context.Context) (removed []string, err error) {
	foreign := xtables.Foreign{Chain: awsChain, Rule: func(r xtables.Rule) bool { return awsComment(r.Comment) }}
	var errs []error
	for _, t := range iptablesTables() {
		gone, err := xtables.Remove(ctx, f.ns, t.Name, foreign)
		errs = append(errs, err)
		for _, r := range gone.Rules {
			removed = append(removed, fmt.Sprintf("rule %q of chain %s in table %s of iptables-legacy", r.Comment, r.Chain, t.Name))
		}
		for _, c := range gone.Chains {
			removed = append(removed, fmt.Sprintf("chain %s in table %s of iptables-legacy", c, t.Name))
		}
	}
	err = errors.Join(errs...)
	f.legacy.Store(&legacyRemoval{err})
	return removed, err
}

// legacyRemoval is how the last removal from iptables-legacy ended.
type legacyRemoval struct{ err error }

// LegacyAWS returns the chains that AWS's daemon has in iptables-legacy, and why RemoveAWS has not
// removed them: nil if it has not failed, for example because it has not run since they were made.
// It changes nothing.
func (f *Firewall) LegacyAWS() (found []string, why, err error) {
	for _, t := range iptablesTables() {
		chains, err := xtables.Chains(f.ns, t.Name)
		if err != nil {
			return nil, nil, err
		}
		for _, c := range chains {
			if awsChain(c) {
				found = append(found, fmt.Sprintf("%s in table %s", c, t.Name))
			}
		}
	}
	if last := f.legacy.Load(); last != nil && len(found) > 0 {
		why = last.err
	}
	return found, why, nil
}
