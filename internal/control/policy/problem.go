package policy

import (
	"context"
	"errors"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/ruleset"
)

// problem is why policies are not enforced; empty if they are, or if there are none.
type problem string

// note notes an error, and reports it once. That a call has ended or the agent stops is none.
func (p *problem) note(d Deps, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if text := problem(err.Error()); text != *p {
		*p = text
		what, refused, remedy := "network policies", "New pods are refused", "To run without policies, set network-policy to off"
		if d.Spared != nil {
			what = "network policies, or SecurityGroupPolicies that nodes enforce for pods without a branch"
			refused += ", but while there are no network policies not those with a branch, and not those that no SecurityGroupPolicy selects"
			remedy += ", and pod-security-group-late-match to report or evict"
		}
		d.Events.NodeWarning("PoliciesNotEnforced", fmt.Sprintf("The cluster has %s, and this node cannot enforce them: %s. %s; pods that run keep what was in force. %s.", what, text, refused, remedy))
		d.Report()
	}
	return err
}

// refuses is the error of an ADD while policies cannot be enforced.
func (p *problem) refuses() error {
	if *p == "" {
		return nil
	}
	return fmt.Errorf("this node cannot enforce the network policies of the cluster: %s", *p)
}

// solved notes that nothing prevents that policies are enforced.
func (p *problem) solved(d Deps) {
	if *p != "" {
		*p = ""
		d.Report()
	}
}

// judge has the rules of nftables call programs, or removes them.
func judge(ctx context.Context, d Deps, by ruleset.Programs) error {
	err := d.Judge(ctx, by)
	if err != nil && by.Forward != "" {
		return fmt.Errorf("call the policy programs from nftables, for which the kernel needs the modules nft_compat and xt_bpf: %w", err)
	}
	return err
}
