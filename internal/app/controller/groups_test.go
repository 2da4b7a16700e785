package controller

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/control/groupstatus"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
)

// groupAccount is an in-memory account with security groups, by id with their names.
type groupAccount struct {
	*fleet
	mu     sync.Mutex
	groups map[string]string
}

func (a *groupAccount) DescribeSecurityGroups(_ context.Context, in *sdk.DescribeSecurityGroupsInput, _ ...func(*sdk.Options)) (*sdk.DescribeSecurityGroupsOutput, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := &sdk.DescribeSecurityGroupsOutput{}
	for _, id := range in.Filters[0].Values {
		if name, exists := a.groups[id]; exists {
			out.SecurityGroups = append(out.SecurityGroups, types.SecurityGroup{GroupId: aws.String(id), GroupName: aws.String(name), VpcId: aws.String("vpc-1")})
		}
	}
	return out, nil
}

func (*groupAccount) DescribeSecurityGroupRules(context.Context, *sdk.DescribeSecurityGroupRulesInput, ...func(*sdk.Options)) (*sdk.DescribeSecurityGroupRulesOutput, error) {
	return &sdk.DescribeSecurityGroupRulesOutput{}, nil
}

func (*groupAccount) GetManagedPrefixListEntries(context.Context, *sdk.GetManagedPrefixListEntriesInput, ...func(*sdk.Options)) (*sdk.GetManagedPrefixListEntriesOutput, error) {
	return &sdk.GetManagedPrefixListEntriesOutput{}, nil
}

func (a *groupAccount) rename(id, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.groups[id] = name
}

// A group of a policy is written for nodes, followed, and deleted after the policy.
func TestGroupsForNodesAreWrittenWithExactlyTheRightsOfTheirComponent(t *testing.T) {
	const (
		policies = "/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies"
		objects  = "/apis/trunkline.dev/v1alpha1/securitygroups"
		id       = "sg-0000000a"
	)
	r := newRig(t)
	account := &groupAccount{fleet: r.fleet, groups: map[string]string{id: "web"}}
	r.opts.Groups = account
	put := func(name, group string) {
		r.Put(policies, &vpcresources.SecurityGroupPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: vpcresources.GroupVersion().String(), Kind: vpcresources.KindSecurityGroupPolicy},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: vpcresources.SecurityGroupPolicySpec{SecurityGroups: vpcresources.GroupIDs{Groups: []string{group}}},
		})
	}
	r.Put(nodes, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	put("web", id)
	ctx, stop := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	ran.Go(func() { feedGroups(ctx, r.opts) })
	ran.Go(func() { groupstatus.New(r.opts.Client, r.opts.Log).Run(ctx) })
	defer func() { stop(); ran.Wait() }()
	until := func(what string, holds func() bool) {
		t.Helper()
		tick, end := time.NewTicker(10*time.Millisecond), time.After(time.Minute)
		defer tick.Stop()
		for !holds() {
			select {
			case <-tick.C:
			case <-end:
				t.Fatalf("not after a minute: %s; objects %q, used %q", what, r.Keys(objects), r.Used())
			}
		}
	}
	until("the group is written", func() bool { return slices.Equal(r.Keys(objects), []string{id}) })
	account.rename(id, "shop")
	put("other", "not an id") // a change of policies: EC2 is read again
	until("the group is updated", func() bool { return slices.Contains(r.Used(), "update securitygroups.trunkline.dev") })
	r.Delete(policies, "shop/web")
	until("the group is deleted", func() bool { return len(r.Keys(objects)) == 0 })
	granted := kubetest.Granted(t, "../../../deploy/components/node-groups/controller-rbac.yaml")
	until("all rights are used", func() bool { return slices.Equal(r.Used(), granted) })
}
