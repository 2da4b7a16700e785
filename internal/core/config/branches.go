package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// securityGroups has the settings of security groups for pods. Those of trunks and branches are the
// controller's.
func securityGroups() []Setting {
	return []Setting{
		text("security-groups-for-pods", SecurityGroupsOff, "How pods that SecurityGroupPolicies select get their security groups: off (such pods are not served), managed (AWS's VPC resource controller makes trunk and branch interfaces), own (Trunkline's controller makes them; only accounts to which AWS allows AssociateTrunkInterface can, and AWS's controller must not run), ebpf (nodes enforce the groups by the programs of network policies, without branches; see security-groups-without-trunks.md) or auto (each node has one of managed, own and ebpf: managed where AWS's controller owns its CNINode, ebpf where its instance type has no trunk or EC2 refuses the calls, else own; the label trunkline.dev/security-groups-for-pods of a Node overrides it).", func(c *Config) *string { return &c.SecurityGroups }, oneOf(SecurityGroupsOff, SecurityGroupsManaged, SecurityGroupsOwn, SecurityGroupsEBPF, SecurityGroupsAuto)),
		text("pod-security-group-late-match", LateMatchEnforce, "What is done with a pod that comes to match a SecurityGroupPolicy after it was wired without a branch, by its labels or by a new policy, with managed and own: enforce (its node enforces the groups within 2s as with ebpf; the components trunks and managed bring the rights, and it needs network-policy; with auto nodes do so with any value), report (the status of the policy counts it, the event SGPViolated names it, and it keeps its node's groups) or evict (the controller evicts it, and a pod that its node refuses because it requests no branch, after 30s, at most one pod in 10s and within PodDisruptionBudgets, so that its next one has a branch; until then it keeps its node's groups; not in kube-system and Trunkline's namespace, and not a pod that no controller would replace; needs the component late-match-evict).", func(c *Config) *string { return &c.LateMatch }, oneOf(LateMatchReport, LateMatchEnforce, LateMatchEvict)),
		text("pod-security-group-enforcing-mode", string(endpoint.Strict), "What of a pod on a branch its security groups apply to: strict (every packet, also from the pod's own node and between pods of it) or standard (not to what stays on the node).", func(c *Config) *string { return (*string)(&c.EnforcingMode) }, oneOf(string(endpoint.Strict), string(endpoint.Standard)), "POD_SECURITY_GROUP_ENFORCING_MODE"),
		duration("branch-cool-down", time.Minute, 30*time.Second, time.Hour, "How long no pod uses a branch interface after its pod, and no branch a VLAN after its branch.", func(c *Config) *time.Duration { return &c.BranchCoolDown }),
		numbersByName("branch-limits", "Numbers of branches by instance type or family, in the place of those that Trunkline knows, such as m9.large=9,m9=18.", func(c *Config) *map[string]int { return &c.BranchLimits }, parseBranchLimits),
		text("quarantine-group", "", "Id of a security group that allows nothing, for branches that no pod uses. Without it, no branch is kept warm or used again.", func(c *Config) *string { return &c.QuarantineGroup }, groupOrNone),
		number("warm-branches", 0, 0, 100, "Branches in quarantine that are kept on each node for pods to come: a pod gets one by one call. Never of the last third of a node's branches or of a subnet.", func(c *Config) *int { return &c.WarmBranches }),
		numbersByName("exact-branches", "Branches that are kept on each node with the security groups of pods to come, by these groups, such as sg-0123456789abcdef0=5,sg-0123456789abcdef0+sg-0123456789abcdef1=2: a pod with exactly these groups gets one without a call. They are preferred to warm-branches, with the same bounds, and need quarantine-group too.", func(c *Config) *map[string]int { return &c.ExactBranches }, parseExactBranches),
		number("groups-per-interface", 5, 1, 16, "Security groups that an interface of the account may have.", func(c *Config) *int { return &c.GroupsPerInterface }),
	}
}

var typeOrFamily = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)?$`)

func groupOrNone(v string) error {
	if v != "" && !vpc.SecurityGroupID(v).Valid() {
		return errors.New("must be the id of a security group, such as sg-0123456789abcdef0")
	}
	return nil
}

// mostBranches is the number of VLANs of a trunk.
const mostBranches = 120

func parseBranchLimits(v string) (map[string]int, error) {
	return parseNumbers(v, 0, mostBranches, "an instance type or family and a number of branches", "m9.large=9", func(name string) (string, bool) {
		return name, typeOrFamily.MatchString(name)
	})
}

// mostExact is the most branches that are kept with the same groups: two thirds of the VLANs.
const mostExact = mostBranches * 2 / 3

// parseExactBranches reads numbers by groups. A name has its groups sorted, so that the same groups
// have one name.
func parseExactBranches(v string) (map[string]int, error) {
	return parseNumbers(v, 1, mostExact, "different security groups and a number of branches", "sg-0123456789abcdef0+sg-0123456789abcdef1=2", func(name string) (string, bool) {
		groups := strings.Split(name, "+")
		for i := range groups {
			groups[i] = strings.TrimSpace(groups[i])
			if !vpc.SecurityGroupID(groups[i]).Valid() {
				return "", false
			}
		}
		slices.Sort(groups)
		return strings.Join(groups, "+"), len(slices.Compact(slices.Clone(groups))) == len(groups)
	})
}

// parseNumbers reads a list of NAME=NUMBER. named returns a name as it is kept, and whether it is one; what
// and example describe an element.
func parseNumbers(v string, least, most int, what, example string, named func(string) (string, bool)) (map[string]int, error) {
	var all map[string]int
	for part := range strings.SplitSeq(v, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		text, number, _ := strings.Cut(part, "=")
		name, ok := named(strings.TrimSpace(text))
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if !ok || err != nil || n < least || n > most {
			return nil, fmt.Errorf("%q: must be %s from %d to %d, such as %s", part, what, least, most, example)
		}
		if _, twice := all[name]; twice {
			return nil, fmt.Errorf("%s is there twice", name)
		}
		if all == nil {
			all = map[string]int{}
		}
		all[name] = n
	}
	return all, nil
}
