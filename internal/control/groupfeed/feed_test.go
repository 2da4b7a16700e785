package groupfeed_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/control/groupfeed"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/edge/kube/kubetest"
	"github.com/trunkline/trunkline/sim/cloud"
	simec2 "github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

const (
	region     = "us-west-2"
	groupsPath = "/apis/trunkline.dev/v1alpha1/securitygroups"
)

// policies are SecurityGroupPolicies.
type policies struct {
	synced bool
	state  kube.GroupState
}

func (p *policies) Synced() bool            { return p.synced }
func (p *policies) State() *kube.GroupState { return &p.state }

func (p *policies) name(groups ...string) {
	p.state.Policies = []securitygroup.Policy{{Ref: securitygroup.Ref{Namespace: "shop", Name: "p"}, Groups: groups}}
}

// world is an embedded EC2 with the groups web and db and an instance, an API server, and a feed.
type world struct {
	*groupfeed.Feed
	t        *testing.T
	ec2      *sdk.Client
	fail     error // of all calls of EC2
	server   *kubetest.Server
	policies *policies
	web, db  string
	instance vpc.InstanceID
}

// roundTrip serves requests within the process, unless they fail.
type roundTrip struct {
	*world
	handler http.Handler
}

func (r roundTrip) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.fail != nil {
		return nil, r.fail
	}
	w := httptest.NewRecorder()
	req = req.Clone(req.Context())
	req.Host = req.URL.Host
	r.handler.ServeHTTP(w, req)
	return w.Result(), nil
}

func start(t *testing.T) *world {
	t.Helper()
	return startWith(t, `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`)
}

// startWith has the feed read EC2 with the rights of a policy of IAM.
func startWith(t *testing.T, rights string) *world {
	t.Helper()
	spec := cloud.Spec{
		Region: region, Account: "111122223333", Seed: 7,
		VPC:         cloud.VPCSpec{Name: "lab", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		RouteTables: []cloud.RouteTableSpec{{Name: "main", Main: true}},
		Subnets:     []cloud.SubnetSpec{{Name: "a", Zone: region + "a", CIDR: netip.MustParsePrefix("10.0.0.0/24")}},
		Groups:      []cloud.GroupSpec{{Name: "web", Description: "web"}, {Name: "db", Description: "db"}},
		Instances:   []cloud.InstanceSpec{{Name: "node1", Type: "m5.xlarge", Subnet: "a", Groups: []string{"web"}, Metadata: cloud.DefaultMetadata()}},
	}
	c, err := cloud.New(spec, cloud.Options{Instant: true})
	must(t, err)
	account := iam.New(spec.Account, 1, nil)
	key, err := account.AddUser("controller", []byte(rights))
	must(t, err)
	injector := faults.New(1, nil)
	t.Cleanup(injector.Close)
	w := &world{t: t, server: kubetest.New(t), policies: &policies{synced: true}}
	handler := query.New(query.Options{Cloud: c, IAM: account, Faults: injector, Calls: &faults.Log{}, Region: region}, simec2.Service(c))
	w.ec2 = ec2.NewReader(aws.Config{
		Region: region, BaseEndpoint: aws.String("http://ec2.test"), RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, ""),
		HTTPClient:  &http.Client{Transport: roundTrip{w, handler}},
	})
	for _, g := range c.State().Groups {
		switch g.Name {
		case "web":
			w.web = string(g.ID)
		case "db":
			w.db = string(g.ID)
		}
	}
	for id := range c.State().Instances {
		w.instance = id
	}
	client, err := kube.FromREST(w.server.REST())
	must(t, err)
	w.Feed = groupfeed.New(groupfeed.Deps{
		Log: slog.New(slog.DiscardHandler), Policies: w.policies, EC2: w.ec2, Client: client,
		Nodes: func(context.Context) ([]vpc.InstanceID, error) { return []vpc.InstanceID{w.instance}, nil },
	})
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) pass() {
	w.t.Helper()
	must(w.t, w.Pass(w.t.Context()))
}

// allow adds a rule to db for the members of web.
func (w *world) allow(port int32) {
	w.t.Helper()
	_, err := w.ec2.AuthorizeSecurityGroupIngress(w.t.Context(), &sdk.AuthorizeSecurityGroupIngressInput{GroupId: aws.String(w.db), IpPermissions: []types.IpPermission{
		{IpProtocol: aws.String("tcp"), FromPort: aws.Int32(port), ToPort: aws.Int32(port), UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: aws.String(w.web)}}},
	}})
	must(w.t, err)
}

// objects are the SecurityGroups of the API server, as texts by name.
func (w *world) objects() map[string]string {
	w.t.Helper()
	out := map[string]string{}
	for _, key := range w.server.Keys(groupsPath) {
		var g trunkline.SecurityGroup
		if !w.server.Get(groupsPath, key, &g) {
			continue
		}
		if g.Spec.Absent {
			out[g.Name] = "absent"
			continue
		}
		var parts []string
		for _, r := range g.Spec.Rules {
			if r.Direction == trunkline.RuleIngress {
				parts = append(parts, fmt.Sprint(r.FromPort, " ", r.GroupID))
			}
		}
		slices.Sort(parts)
		out[g.Name] = strings.Join(append(parts, fmt.Sprint(g.Spec.Members)), "; ")
	}
	return out
}

func (w *world) expect(want map[string]string) {
	w.t.Helper()
	got := w.objects()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("objects %v, want %v", got, want)
	}
}

func TestNodesGetTheGroupsThatPoliciesNameAndTheirReferences(t *testing.T) {
	w := start(t)
	w.policies.synced = false
	w.policies.name(w.db, "default")
	w.allow(5432)
	w.pass()
	w.expect(nil) // what policies name is not known
	w.policies.synced = true
	w.pass()
	rules := "5432 " + w.web + "; []"
	w.expect(map[string]string{w.db: rules, w.web: "[10.0.0.147/32]"})

	requests := len(w.server.Requests())
	w.pass()
	for _, r := range w.server.Requests()[requests:] {
		if !strings.HasPrefix(r, "GET ") {
			t.Errorf("a pass without a change made the request %s", r)
		}
	}

	w.allow(22) // edited
	made, err := w.ec2.CreateNetworkInterface(t.Context(), &sdk.CreateNetworkInterfaceInput{
		SubnetId: w.subnet(), Groups: []string{w.web}, PrivateIpAddress: aws.String("10.0.0.146"), // joins
	})
	must(t, err)
	w.pass()
	w.expect(map[string]string{w.db: "22 " + w.web + "; " + rules, w.web: "[10.0.0.146/31]"})
	_, err = w.ec2.ModifyNetworkInterfaceAttribute(t.Context(), &sdk.ModifyNetworkInterfaceAttributeInput{NetworkInterfaceId: made.NetworkInterface.NetworkInterfaceId, Groups: []string{w.db}}) // leaves
	must(t, err)
	w.pass()
	w.expect(map[string]string{w.db: "22 " + w.web + "; " + rules, w.web: "[10.0.0.147/32]"})

	w.policies.state.Policies = nil
	w.pass()
	w.expect(nil)
}

func (w *world) subnet() *string {
	w.t.Helper()
	found, err := w.ec2.DescribeSubnets(w.t.Context(), &sdk.DescribeSubnetsInput{})
	must(w.t, err)
	return found.Subnets[0].SubnetId
}

func TestNothingIsWrittenWhileEC2CannotBeRead(t *testing.T) {
	w := start(t)
	w.policies.name(w.db)
	w.allow(5432)
	w.pass()
	before := w.objects()
	w.fail = errors.New("connection refused")
	if err := w.Pass(t.Context()); err == nil || !strings.Contains(err.Error(), "read security groups") {
		t.Errorf("error %v", err)
	}
	w.expect(before)
}

// ops makes a group.
func (w *world) ops() string {
	w.t.Helper()
	made, err := w.ec2.CreateSecurityGroup(w.t.Context(), &sdk.CreateSecurityGroupInput{GroupName: aws.String("ops"), Description: aws.String("ops"), VpcId: w.vpc()})
	must(w.t, err)
	return *made.GroupId
}

func TestAGroupThatEC2ShowsNoMoreIsAbsentAfterASecondReading(t *testing.T) {
	w := start(t)
	ops := w.ops()
	w.policies.name(ops)
	w.pass()
	want := map[string]string{ops: "[]"}
	w.expect(want)
	_, err := w.ec2.DeleteSecurityGroup(t.Context(), &sdk.DeleteSecurityGroupInput{GroupId: aws.String(ops)})
	must(t, err)
	w.pass()
	w.expect(want)
	w.pass()
	w.expect(map[string]string{ops: "absent"})
	w.policies.name(w.web)
	w.pass()
	w.expect(map[string]string{w.web: "[]"})
}

// unseen is EC2 while it does not show a group.
type unseen struct {
	ec2.GroupAPI
	group string
}

func (u unseen) DescribeSecurityGroups(ctx context.Context, in *sdk.DescribeSecurityGroupsInput, o ...func(*sdk.Options)) (*sdk.DescribeSecurityGroupsOutput, error) {
	out, err := u.GroupAPI.DescribeSecurityGroups(ctx, in, o...)
	if err == nil {
		out.SecurityGroups = slices.DeleteFunc(out.SecurityGroups, func(g types.SecurityGroup) bool { return aws.ToString(g.GroupId) == u.group })
	}
	return out, err
}

// A policy may name a group before it is created. What rules refer to is not published as absent: it
// refuses no pod.
func TestAGroupThatEC2DoesNotHaveIsPublishedAsAbsentUntilItIsCreated(t *testing.T) {
	w := start(t)
	ops := w.ops()
	w.policies.name(w.db, ops)
	w.EC2 = unseen{w.ec2, ops}
	w.pass()
	w.expect(map[string]string{w.db: "[]", ops: "absent"})
	requests := len(w.server.Requests())
	w.pass()
	for _, r := range w.server.Requests()[requests:] {
		if !strings.HasPrefix(r, "GET ") {
			t.Errorf("a pass without a change made the request %s", r)
		}
	}
	w.EC2 = w.ec2
	w.pass()
	w.expect(map[string]string{w.db: "[]", ops: "[]"})
	w.allow(5432)
	w.policies.name(w.db)
	w.EC2 = unseen{w.ec2, w.web}
	w.pass()
	w.expect(map[string]string{w.db: "5432 " + w.web + "; []"})
}

func (w *world) vpc() *string {
	w.t.Helper()
	found, err := w.ec2.DescribeVpcs(w.t.Context(), &sdk.DescribeVpcsInput{})
	must(w.t, err)
	return found.Vpcs[0].VpcId
}

// wide is EC2 with a rule of more ranges than an object may have.
type wide struct{ ec2.GroupAPI }

func (w wide) GetManagedPrefixListEntries(context.Context, *sdk.GetManagedPrefixListEntriesInput, ...func(*sdk.Options)) (*sdk.GetManagedPrefixListEntriesOutput, error) {
	out := &sdk.GetManagedPrefixListEntriesOutput{}
	for i := range 1001 {
		out.Entries = append(out.Entries, types.PrefixListEntry{Cidr: aws.String(fmt.Sprintf("192.%d.%d.0/24", i/256, i%256))})
	}
	return out, nil
}

func (w wide) DescribeSecurityGroupRules(_ context.Context, in *sdk.DescribeSecurityGroupRulesInput, _ ...func(*sdk.Options)) (*sdk.DescribeSecurityGroupRulesOutput, error) {
	rule := types.SecurityGroupRule{GroupId: aws.String(in.Filters[0].Values[0]), IsEgress: aws.Bool(true), IpProtocol: aws.String("-1")}
	list, odd := rule, rule
	list.SecurityGroupRuleId, list.PrefixListId = aws.String("sgr-00000001"), aws.String("pl-1")
	odd.SecurityGroupRuleId, odd.CidrIpv4 = aws.String("rule"), aws.String("10.0.0.0/8")
	return &sdk.DescribeSecurityGroupRulesOutput{SecurityGroupRules: []types.SecurityGroupRule{list, odd}}, nil
}

func TestWhatDoesNotFitAnObjectIsNamedAndAllowsNothing(t *testing.T) {
	w := start(t)
	w.policies.name(w.db)
	w.EC2 = wide{w.ec2}
	w.pass()
	var g trunkline.SecurityGroup
	if !w.server.Get(groupsPath, w.db, &g) {
		t.Fatal("no object")
	}
	if len(g.Spec.Rules) != 1 || g.Spec.Rules[0].Unusable != "1001 ranges are more than 1000" || g.Spec.Rules[0].Prefixes != nil {
		t.Errorf("rules %+v", g.Spec.Rules)
	}
	if want := []string{`rule "rule": it is no id of a rule`}; !slices.Equal(g.Spec.NotUsed, want) {
		t.Errorf("not used: %q, want %q", g.Spec.NotUsed, want)
	}
}
