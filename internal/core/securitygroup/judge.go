package securitygroup

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Why groups cannot be applied.
var (
	// ErrMalformedGroup: the text is no id of a security group. No retry helps.
	ErrMalformedGroup = errors.New("it is not the id of a security group")
	// ErrUnknownGroup: EC2 has no such group. It may be created later.
	ErrUnknownGroup = errors.New("EC2 has no such security group")
	// ErrForeignGroup: the group is of another VPC, and EC2 would refuse it.
	ErrForeignGroup = errors.New("the security group is of another VPC")
	// ErrTooManyGroups: the pod would have more groups than an interface may have.
	ErrTooManyGroups = errors.New("too many security groups")
	// ErrGroupNotRead: EC2 has not been asked for the group yet.
	ErrGroupNotRead = errors.New("the security group has not been read from EC2 yet")
)

// Bounds of the groups of an interface. The account's quota is DefaultLimit unless it was raised,
// which AWS does up to MaxLimit. Source: VPC user guide, "Amazon VPC quotas".
const (
	DefaultLimit = 5
	MaxLimit     = 16
)

// Group is what EC2 says about a group that was asked for.
type Group struct {
	Exists bool
	// VPCs that interfaces with the group may be in: its own, and those it is associated with.
	VPCs []vpc.ID
}

// Known is what is known of the groups at EC2.
type Known struct {
	VPC    vpc.ID
	Limit  int              // groups of an interface; 0 is DefaultLimit
	Groups map[string]Group // those that EC2 was asked for
}

func (k Known) limit() int {
	if k.Limit <= 0 {
		return DefaultLimit
	}
	return min(k.Limit, MaxLimit)
}

// Judge returns the decision with the groups checked: a pod that was selected is refused if one of
// its groups cannot be applied. Others are returned as they are.
func (k Known) Judge(d Decision) Decision {
	if d.Verdict != Selected {
		return d
	}
	if err := k.refusal(d.Groups); err != nil {
		d.refuse(err)
	}
	return d
}

// refusal is why groups cannot be applied together: first what no answer of EC2 changes, last what
// is not known yet.
func (k Known) refusal(groups []string) error {
	if n := k.limit(); len(groups) > n {
		return fmt.Errorf("%d security groups, and an interface of this account may have %d: %w: name fewer, or raise the quota", len(groups), n, ErrTooManyGroups)
	}
	bad := map[error][]string{}
	for _, g := range groups {
		err := k.Problem(g)
		bad[err] = append(bad[err], strconv.Quote(g))
	}
	for _, err := range []error{ErrMalformedGroup, ErrUnknownGroup, ErrForeignGroup, ErrGroupNotRead} {
		if len(bad[err]) > 0 {
			return k.named(strings.Join(bad[err], ", "), err)
		}
	}
	return nil
}

// named is a problem with the groups that have it.
func (k Known) named(groups string, err error) error {
	if k.VPC != "" && (errors.Is(err, ErrUnknownGroup) || errors.Is(err, ErrForeignGroup)) {
		return fmt.Errorf("security group %s does not exist in %s: %w", groups, k.VPC, err)
	}
	return fmt.Errorf("security group %s: %w", groups, err)
}

// Unusable is why the first of groups that no VPC can apply cannot be, by what each knows; nil without
// one. A group that was not read yet may be usable.
func Unusable(groups []string, known []Known) error {
	for _, id := range groups {
		var bad error
		for _, k := range known {
			err := k.Problem(id)
			if err == nil || errors.Is(err, ErrGroupNotRead) {
				bad = nil
				break
			}
			bad = k.named(strconv.Quote(id), err)
		}
		if bad != nil {
			return bad
		}
	}
	return nil
}

// Problem is why a group cannot be applied in the VPC; nil if it can.
func (k Known) Problem(group string) error {
	if !vpc.SecurityGroupID(group).Valid() {
		return ErrMalformedGroup
	}
	g, read := k.Groups[group]
	switch {
	case !read:
		return ErrGroupNotRead
	case !g.Exists:
		return ErrUnknownGroup
	case !slices.Contains(g.VPCs, k.VPC):
		return ErrForeignGroup
	}
	return nil
}
