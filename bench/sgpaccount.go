package bench

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	simec2 "github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

const (
	sgpRegion  = "us-west-2"
	sgpCluster = "bench"
	sgpType    = "m5.16xlarge" // 107 branches
	callTime   = 300 * time.Millisecond
)

// ec2Buckets are EC2's token buckets of the calls that either controller makes. Source: EC2
// developer guide, "Request throttling for the Amazon EC2 API": those of CreateNetworkInterface,
// ModifyNetworkInterfaceAttribute and CreateTags have numbers of their own, other changes have 50
// tokens and 5 a second, reads 100 and 20.
func ec2Buckets() map[string]faults.Bucket {
	out := map[string]faults.Bucket{
		"CreateNetworkInterface": {Size: 100, Rate: 5}, "DeleteNetworkInterface": {Size: 100, Rate: 5},
		"ModifyNetworkInterfaceAttribute": {Size: 100, Rate: 5}, "CreateTags": {Size: 100, Rate: 10},
	}
	for _, change := range []string{"AttachNetworkInterface", "AssociateTrunkInterface", "DisassociateTrunkInterface", "CreateNetworkInterfacePermission"} {
		out[change] = faults.Bucket{Size: 50, Rate: 5}
	}
	for _, read := range []string{"DescribeInstances", "DescribeInstanceTypes", "DescribeNetworkInterfaces", "DescribeSecurityGroups", "DescribeSubnets", "DescribeTrunkInterfaceAssociations"} {
		out[read] = faults.Bucket{Size: 100, Rate: 20}
	}
	return out
}

// account is an AWS account with instances and the embedded EC2's API.
type account struct {
	*run
	cloud  *cloud.Cloud
	faults *faults.Injector
	calls  *faults.Log
	config aws.Config // of Trunkline's controller
	eks    aws.Config // of AWS's
	groups map[string]vpc.SecurityGroupID
}

func instanceName(n int) string { return fmt.Sprint("node-", n) }

// newAccount has instances by the names of instanceName. The API takes no time at first.
func newAccount(r *run, source string, instances int) *account {
	spec := cloud.Spec{
		Region: sgpRegion, Account: "111122223333", Seed: 7,
		VPC:     cloud.VPCSpec{Name: "bench", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		Subnets: []cloud.SubnetSpec{{Name: "a", Zone: sgpRegion + "a", CIDR: netip.MustParsePrefix("10.0.0.0/16")}},
	}
	for _, name := range []string{"node", "web"} {
		spec.Groups = append(spec.Groups, cloud.GroupSpec{Name: name, Description: name})
	}
	spec.Groups = append(spec.Groups, cloud.GroupSpec{Name: "quarantine", Description: "allows nothing", Egress: []cloud.RuleSpec{}})
	for n := range instances {
		spec.Instances = append(spec.Instances, cloud.InstanceSpec{
			Name: instanceName(n), Type: sgpType, Subnet: "a", Groups: []string{"node"}, Metadata: cloud.DefaultMetadata(),
		})
	}
	spec.Quotas.TrunkCalls = true
	a := &account{run: r, calls: &faults.Log{}, faults: faults.New(1, nil), groups: map[string]vpc.SecurityGroupID{}}
	r.Cleanup(a.faults.Close)
	var err error
	if a.cloud, err = cloud.New(spec, cloud.Options{Instant: true}); err != nil {
		r.Fatal(err)
	}
	for id, g := range a.cloud.State().Groups {
		a.groups[g.Name] = id
	}
	a.serve(spec, source)
	return a
}

// serve serves the API to a role with the policies of deploy/iam, and to Amazon EKS.
func (a *account) serve(spec cloud.Spec, source string) {
	policies := map[string][]byte{}
	for _, name := range []string{"controller-policy", "controller-trunks-policy"} {
		text, err := os.ReadFile(filepath.Join(source, "deploy/iam", name+".json"))
		if err != nil {
			a.Fatal(err)
		}
		policies[name] = text
	}
	identities := iam.New(spec.Account, 1, nil)
	if err := identities.AddRole(iam.Role{Name: "controller", Policies: policies, Tags: map[string]string{vpc.TagClusterName: sgpCluster}}); err != nil {
		a.Fatal(err)
	}
	key, _, err := identities.Issue(iam.Session{Role: "controller", Name: "session", Lifetime: 12 * time.Hour})
	if err != nil {
		a.Fatal(err)
	}
	eks, err := identities.AddService("eks.amazonaws.com", "AWSServiceRoleForAmazonEKS", "AmazonEKS")
	if err != nil {
		a.Fatal(err)
	}
	api := httptest.NewServer(query.New(query.Options{
		Cloud: a.cloud, IAM: identities, Faults: a.faults, Calls: a.calls, Region: spec.Region, Latency: 5 * time.Millisecond,
	}, simec2.Service(a.cloud)))
	a.Cleanup(api.Close)
	access := func(key iam.Credentials) aws.Config {
		return aws.Config{
			Region: spec.Region, BaseEndpoint: aws.String(api.URL),
			Credentials: credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, key.Token),
		}
	}
	a.config, a.eks = access(key), access(eks)
}

// slow has each call take callTime, and EC2's buckets limit them, from now on.
func (a *account) slow() {
	plan := faults.Plan{Latency: map[string]faults.Latency{"*": {Fixed: faults.Duration(callTime)}}, Throttle: ec2Buckets()}
	if err := a.faults.Set(plan); err != nil {
		a.Fatal(err)
	}
}

// instance is the id of an instance.
func (a *account) instance(n int) vpc.InstanceID {
	return a.cloud.State().InstanceNamed(instanceName(n)).ID
}

// wrong says what of a pod's annotation is not so at EC2; empty if it is.
func (a *account) wrong(text, group string) string {
	entries, err := podeni.Decode(text)
	if err != nil || len(entries) != 1 {
		return fmt.Sprintf("annotation %q: %v", text, err)
	}
	e := entries[0]
	i := a.cloud.State().Interfaces[e.ENI]
	if i == nil || i.Trunk == nil || i.Trunk.VLAN != e.VLAN || string(i.Trunk.ID) != e.Association || len(i.Groups) != 1 || i.Groups[0] != a.groups[group] {
		return fmt.Sprintf("annotation %s, at EC2 %+v", text, i)
	}
	return ""
}

// made counts the calls of EC2 by action.
func (a *account) made() map[string]int {
	out := map[string]int{}
	for of, n := range a.calls.Counts() {
		out[of.Action] += n
		if of.Code != "" {
			out["refused"] += n
		}
	}
	return out
}

// callsOf names the calls between two counts.
func callsOf(began, ended map[string]int) string {
	var out []string
	for _, action := range slices.Sorted(maps.Keys(ended)) {
		if n := ended[action] - began[action]; n > 0 {
			out = append(out, fmt.Sprintf("%d %s", n, action))
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}
