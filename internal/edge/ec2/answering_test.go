package ec2_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// answering is EC2 with the objects and the errors that a test gives it. It keeps the requests,
// each as its action and the fields that are set. Of filters it knows those by the id of a group
// and of an interface.
type answering struct {
	ec2.API
	interfaces   []types.NetworkInterface
	subnets      []types.Subnet
	instances    []types.Instance
	groups       []types.SecurityGroup
	rules        []types.SecurityGroupRule
	associations []types.TrunkInterfaceAssociation
	lists        map[string][]string              // ranges of prefix lists
	created      *types.NetworkInterface          // the reply of CreateNetworkInterface
	associated   *types.TrunkInterfaceAssociation // that of AssociateTrunkInterface
	page         int                              // objects of a page; 0: all are on one
	refused      map[string]error                 // by action, or by action and the number of its call
	asked        []string
}

// refusing is an error of EC2 with a code.
func refusing(code string) error { return &smithy.GenericAPIError{Code: code, Message: "m"} }

// trunksOn are the trunk calls of an executor with a client; each call is made once, without a wait
// for the budget.
func trunksOn(t *testing.T, api ec2.API) ec2.Trunks {
	t.Helper()
	x, err := ec2.NewExecutor(ec2.Options{
		Clients: ec2.Clients{Kept: api}, Log: slog.New(slog.DiscardHandler), Tries: 1,
		Budget: func(string) ec2.Budget { return ec2.Budget{PerSecond: 1e6, Burst: 1e6} },
	})
	if err != nil {
		t.Fatal(err)
	}
	return ec2.Trunks{Executor: x, Cluster: "lab"}
}

// requests are those of an action, in their order.
func (a *answering) requests(action string) (out []string) {
	for _, r := range a.asked {
		if fields, is := strings.CutPrefix(r, action+" "); is {
			out = append(out, fields)
		}
	}
	return out
}

// calls are the actions of the requests, in their order.
func (a *answering) calls() string {
	out := make([]string, len(a.asked))
	for i, r := range a.asked {
		out[i], _, _ = strings.Cut(r, " ")
	}
	return strings.Join(out, " ")
}

func (a *answering) ask(action string, in any) error {
	a.asked = append(a.asked, action+" "+fieldsOf(in))
	if err, is := a.refused[fmt.Sprint(action, " ", len(a.requests(action)))]; is {
		return err
	}
	return a.refused[action]
}

// fieldsOf is a request in JSON, without empty fields. An empty token is kept: it names no page.
func fieldsOf(in any) string {
	raw, err := json.Marshal(in)
	if err != nil {
		return err.Error()
	}
	var all any
	if err := json.Unmarshal(raw, &all); err != nil {
		return err.Error()
	}
	raw, _ = json.Marshal(onlySet(all)) // of values that were read from JSON
	return strings.ReplaceAll(string(raw), `"`, "")
}

func onlySet(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, field := range v {
			if field = onlySet(field); field == nil || field == "" && k != "NextToken" {
				delete(v, k)
				continue
			}
			v[k] = field
		}
	case []any:
		for i := range v {
			v[i] = onlySet(v[i])
		}
	}
	return v
}

// pageOf returns the objects of the page that a token asks for, and the token of the next one. A
// token is the number of the first object.
func pageOf[T any](all []T, size int, token *string) ([]T, *string) {
	first, _ := strconv.Atoi(aws.ToString(token)) // 0 without one
	rest := all[min(first, len(all)):]
	if size == 0 || len(rest) <= size {
		return rest, nil
	}
	return rest[:size], aws.String(strconv.Itoa(first + size))
}

// valuesOf are the values of a filter; all is true if it is not asked for.
func valuesOf(filters []types.Filter, name string) (values []string, all bool) {
	for _, f := range filters {
		if aws.ToString(f.Name) == name {
			return f.Values, false
		}
	}
	return nil, true
}

func (a *answering) DescribeNetworkInterfaces(_ context.Context, in *sdk.DescribeNetworkInterfacesInput, _ ...func(*sdk.Options)) (*sdk.DescribeNetworkInterfacesOutput, error) {
	if err := a.ask("DescribeNetworkInterfaces", in); err != nil {
		return nil, err
	}
	groups, anyGroup := valuesOf(in.Filters, "group-id")
	ids, anyID := valuesOf(in.Filters, "network-interface-id")
	if in.NetworkInterfaceIds != nil {
		ids, anyID = in.NetworkInterfaceIds, false
	}
	var found []types.NetworkInterface
	for _, n := range a.interfaces {
		in := slices.ContainsFunc(n.Groups, func(g types.GroupIdentifier) bool { return slices.Contains(groups, aws.ToString(g.GroupId)) })
		if (anyGroup || in) && (anyID || slices.Contains(ids, aws.ToString(n.NetworkInterfaceId))) {
			found = append(found, n)
		}
	}
	page, next := pageOf(found, a.page, in.NextToken)
	return &sdk.DescribeNetworkInterfacesOutput{NetworkInterfaces: page, NextToken: next}, nil
}

func (a *answering) DescribeSubnets(_ context.Context, in *sdk.DescribeSubnetsInput, _ ...func(*sdk.Options)) (*sdk.DescribeSubnetsOutput, error) {
	if err := a.ask("DescribeSubnets", in); err != nil {
		return nil, err
	}
	page, next := pageOf(a.subnets, a.page, in.NextToken)
	return &sdk.DescribeSubnetsOutput{Subnets: page, NextToken: next}, nil
}

func (a *answering) DescribeInstances(_ context.Context, in *sdk.DescribeInstancesInput, _ ...func(*sdk.Options)) (*sdk.DescribeInstancesOutput, error) {
	if err := a.ask("DescribeInstances", in); err != nil {
		return nil, err
	}
	return &sdk.DescribeInstancesOutput{Reservations: []types.Reservation{{}, {Instances: a.instances}}}, nil
}

func (a *answering) DescribeSecurityGroups(_ context.Context, in *sdk.DescribeSecurityGroupsInput, _ ...func(*sdk.Options)) (*sdk.DescribeSecurityGroupsOutput, error) {
	if err := a.ask("DescribeSecurityGroups", in); err != nil {
		return nil, err
	}
	ids, all := valuesOf(in.Filters, "group-id")
	var found []types.SecurityGroup
	for _, g := range a.groups {
		if all || g.GroupId == nil || slices.Contains(ids, *g.GroupId) {
			found = append(found, g)
		}
	}
	page, next := pageOf(found, a.page, in.NextToken)
	return &sdk.DescribeSecurityGroupsOutput{SecurityGroups: page, NextToken: next}, nil
}

func (a *answering) DescribeSecurityGroupRules(_ context.Context, in *sdk.DescribeSecurityGroupRulesInput, _ ...func(*sdk.Options)) (*sdk.DescribeSecurityGroupRulesOutput, error) {
	if err := a.ask("DescribeSecurityGroupRules", in); err != nil {
		return nil, err
	}
	ids, all := valuesOf(in.Filters, "group-id")
	var found []types.SecurityGroupRule
	for _, r := range a.rules {
		if all || slices.Contains(ids, aws.ToString(r.GroupId)) {
			found = append(found, r)
		}
	}
	page, next := pageOf(found, a.page, in.NextToken)
	return &sdk.DescribeSecurityGroupRulesOutput{SecurityGroupRules: page, NextToken: next}, nil
}

func (a *answering) GetManagedPrefixListEntries(_ context.Context, in *sdk.GetManagedPrefixListEntriesInput, _ ...func(*sdk.Options)) (*sdk.GetManagedPrefixListEntriesOutput, error) {
	if err := a.ask("GetManagedPrefixListEntries", in); err != nil {
		return nil, err
	}
	page, next := pageOf(a.lists[aws.ToString(in.PrefixListId)], a.page, in.NextToken)
	out := &sdk.GetManagedPrefixListEntriesOutput{NextToken: next}
	for _, cidr := range page {
		out.Entries = append(out.Entries, types.PrefixListEntry{Cidr: aws.String(cidr)})
	}
	return out, nil
}

func (a *answering) DescribeTrunkInterfaceAssociations(_ context.Context, in *sdk.DescribeTrunkInterfaceAssociationsInput, _ ...func(*sdk.Options)) (*sdk.DescribeTrunkInterfaceAssociationsOutput, error) {
	if err := a.ask("DescribeTrunkInterfaceAssociations", in); err != nil {
		return nil, err
	}
	page, next := pageOf(a.associations, a.page, in.NextToken)
	return &sdk.DescribeTrunkInterfaceAssociationsOutput{InterfaceAssociations: page, NextToken: next}, nil
}

func (a *answering) CreateNetworkInterface(_ context.Context, in *sdk.CreateNetworkInterfaceInput, _ ...func(*sdk.Options)) (*sdk.CreateNetworkInterfaceOutput, error) {
	return &sdk.CreateNetworkInterfaceOutput{NetworkInterface: a.created}, a.ask("CreateNetworkInterface", in)
}

func (a *answering) AttachNetworkInterface(_ context.Context, in *sdk.AttachNetworkInterfaceInput, _ ...func(*sdk.Options)) (*sdk.AttachNetworkInterfaceOutput, error) {
	return &sdk.AttachNetworkInterfaceOutput{AttachmentId: aws.String("eni-attach-new")}, a.ask("AttachNetworkInterface", in)
}

func (a *answering) ModifyNetworkInterfaceAttribute(_ context.Context, in *sdk.ModifyNetworkInterfaceAttributeInput, _ ...func(*sdk.Options)) (*sdk.ModifyNetworkInterfaceAttributeOutput, error) {
	return &sdk.ModifyNetworkInterfaceAttributeOutput{}, a.ask("ModifyNetworkInterfaceAttribute", in)
}

func (a *answering) CreateTags(_ context.Context, in *sdk.CreateTagsInput, _ ...func(*sdk.Options)) (*sdk.CreateTagsOutput, error) {
	return &sdk.CreateTagsOutput{}, a.ask("CreateTags", in)
}

func (a *answering) AssociateTrunkInterface(_ context.Context, in *sdk.AssociateTrunkInterfaceInput, _ ...func(*sdk.Options)) (*sdk.AssociateTrunkInterfaceOutput, error) {
	return &sdk.AssociateTrunkInterfaceOutput{InterfaceAssociation: a.associated}, a.ask("AssociateTrunkInterface", in)
}

func (a *answering) DisassociateTrunkInterface(_ context.Context, in *sdk.DisassociateTrunkInterfaceInput, _ ...func(*sdk.Options)) (*sdk.DisassociateTrunkInterfaceOutput, error) {
	return &sdk.DisassociateTrunkInterfaceOutput{}, a.ask("DisassociateTrunkInterface", in)
}

func (a *answering) DeleteNetworkInterface(_ context.Context, in *sdk.DeleteNetworkInterfaceInput, _ ...func(*sdk.Options)) (*sdk.DeleteNetworkInterfaceOutput, error) {
	return &sdk.DeleteNetworkInterfaceOutput{}, a.ask("DeleteNetworkInterface", in)
}
