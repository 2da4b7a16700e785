package world_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	awssts "github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/sts"
	"github.com/trunkline/trunkline/sim/world"
)

func smallSpec() cloud.Spec {
	prefix := netip.MustParsePrefix
	return cloud.Spec{
		Region: "us-west-2", Account: "111122223333", Seed: 1,
		VPC: cloud.VPCSpec{Name: "lab", CIDRs: []netip.Prefix{prefix("10.0.0.0/16")}, InternetGateway: true},
		RouteTables: []cloud.RouteTableSpec{
			{Name: "public", Routes: []cloud.RouteSpec{{Destination: prefix("0.0.0.0/0"), Gateway: "igw"}}},
		},
		Subnets: []cloud.SubnetSpec{{Name: "a", Zone: "us-west-2a", CIDR: prefix("10.0.0.0/19"), Public: true}},
		Groups:  []cloud.GroupSpec{{Name: "node", Ingress: []cloud.RuleSpec{{Protocol: "-1", Groups: []string{"node"}}}}},
		Instances: []cloud.InstanceSpec{{
			Name: "node1", Type: "m5.xlarge", Subnet: "a", Groups: []string{"node"}, Role: "node", Metadata: cloud.DefaultMetadata(),
		}},
	}
}

// machines counts switches, and can be made to fail.
type machines struct {
	mu                  sync.Mutex // guards what follows
	reboots, terminates int
	broken              error
}

func (m *machines) Reboot(context.Context, vpc.InstanceID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reboots++
	return m.broken
}

func (m *machines) Terminate(context.Context, vpc.InstanceID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.terminates++
	return m.broken
}

func node() []iam.Role { return []iam.Role{{Name: "node", Instances: true}} }

func startAPI(t *testing.T, c world.Config) *world.World {
	t.Helper()
	w, err := world.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return w
}

func TestWorldWithoutAFabricServesTheAPI(t *testing.T) {
	w := startAPI(t, world.Config{Spec: smallSpec(), Roles: node()})
	key := w.Operator()
	c := awsec2.New(awsec2.Options{
		Region: "us-west-2", BaseEndpoint: aws.String(w.Endpoint()),
		Credentials: credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, ""),
	})
	out, err := c.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{})
	if err != nil || len(out.Reservations) != 1 {
		t.Fatalf("%v, %d reservations", err, len(out.Reservations))
	}
	resp, err := http.Get(w.AdminEndpoint() + "/calls")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); !strings.Contains(string(body), `"action": "DescribeInstances"`) {
		t.Errorf("call log: %s", body)
	}
}

func TestEveryAnswerHasTheWorldsLatency(t *testing.T) {
	const latency = 30 * time.Millisecond
	w := startAPI(t, world.Config{Spec: smallSpec(), Roles: node(), Latency: latency})
	resp, err := http.Post(w.Endpoint(), "application/x-www-form-urlencoded", strings.NewReader("Action=DescribeSubnets&Version=2016-11-15"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if call := w.Calls().Since(0, "")[0]; call.Code != "MissingAuthenticationToken" || call.Millis < float64(latency.Milliseconds()) {
		t.Errorf("the call took %v ms and returned %q, want at least %s", call.Millis, call.Code, latency)
	}
}

// Host names, partition by partition, are those that the SDK derives.
func TestEndpointsHaveTheNamesOfTheRegionsPartition(t *testing.T) {
	for region, domains := range map[string][2]string{
		"us-west-2":      {"amazonaws.com", "api.aws"},
		"eu-central-1":   {"amazonaws.com", "api.aws"},
		"us-gov-west-1":  {"amazonaws.com", "api.aws"},
		"cn-north-1":     {"amazonaws.com.cn", "api.amazonwebservices.com.cn"},
		"us-iso-east-1":  {"c2s.ic.gov", "api.aws.ic.gov"},
		"us-isob-east-1": {"sc2s.sgov.gov", "api.aws.scloud"},
	} {
		got := world.Endpoints(region)
		for n, dual := range []bool{false, true} {
			at, err := awsec2.NewDefaultEndpointResolverV2().ResolveEndpoint(t.Context(), awsec2.EndpointParameters{
				Region: aws.String(region), UseDualStack: aws.Bool(dual), UseFIPS: aws.Bool(false),
			})
			if err != nil {
				t.Fatal(err)
			}
			if want := "ec2." + region + "." + domains[n]; at.URI.Host != want || !slices.Contains(got, want) {
				t.Errorf("%s: the SDK uses %s, want %s, and the names are %v", region, at.URI.Host, want, got)
			}
		}
		if global := slices.Contains(got, "sts.amazonaws.com"); global != (domains[0] == "amazonaws.com" && !strings.HasPrefix(region, "us-gov-")) {
			t.Errorf("%s: global STS endpoint %v in %v", region, global, got)
		}
	}
}

func TestMachinesAreSwitchedOnceAndRetriedOnFailure(t *testing.T) {
	m := &machines{}
	w := startAPI(t, world.Config{Spec: smallSpec(), Roles: node(), Machines: m})
	id := w.State().InstanceNamed("node1").ID
	for n := 1; n <= 2; n++ {
		if err := w.Reboot(t.Context(), id); err != nil || m.reboots != n {
			t.Fatalf("reboot %d: %v, the machine was rebooted %d times", n, err, m.reboots)
		}
	}
	m.mu.Lock()
	m.broken = errors.New("the switch is stuck")
	m.mu.Unlock()
	if err := w.Reboot(t.Context(), id); err == nil || err.Error() != "reboot "+string(id)+": the switch is stuck" {
		t.Errorf("got %v", err)
	}
}

func TestInstancesAreLaunchedAndTerminated(t *testing.T) {
	m := &machines{}
	w := startAPI(t, world.Config{Spec: smallSpec(), Roles: node(), Machines: m})
	old := w.State().InstanceNamed("node1")
	if err := w.Terminate(t.Context(), old.ID); err != nil {
		t.Fatal(err)
	}
	if got := w.State().Instances[old.ID].State; got != cloud.Terminated {
		t.Errorf("state %s, want terminated", got)
	}
	if err := w.Launch(smallSpec().Instances[0]); err != nil {
		t.Fatal(err)
	}
	if n := w.State().InstanceNamed("node1"); n.ID == old.ID || n.State != cloud.Running {
		t.Errorf("node1 is %s, %s", n.ID, n.State)
	}
	bad := smallSpec().Instances[0]
	bad.Role = "missing"
	if err := w.Launch(bad); err == nil {
		t.Error("launched with a role that does not exist")
	}
}

func TestInvalidConfigDoesNotStart(t *testing.T) {
	for want, config := range map[string]world.Config{
		`start world: instance node1: role "node" does not exist, or instances may not have it`:                         {Spec: smallSpec()},
		`start world: role node: policy p: element Version: "", want "2012-10-17"`:                                      {Spec: smallSpec(), Roles: []iam.Role{{Name: "node", Policies: map[string][]byte{"p": []byte("{}")}}}},
		`start world: calls[0]: do "x": want lose-reply, hang, hang-after, disconnect, fail, stop-before or stop-after`: {Spec: smallSpec(), Roles: node(), Faults: faults.Plan{Calls: []faults.Call{{Action: "X", Do: "x"}}}},
		`start world: action CreateNetworkInterfaces: there is no such action`:                                          {Spec: smallSpec(), Roles: node(), Faults: faults.Plan{Throttle: map[string]faults.Bucket{"CreateNetworkInterfaces": {Size: 1}}}},
		`start world: trust issuer https://x: no public key`:                                                            {Spec: smallSpec(), Roles: node(), Issuers: []sts.Issuer{{URL: "https://x"}}},
	} {
		if _, err := world.Start(t.Context(), config); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// In every partition, the ARNs of EC2, STS and IAM are those of the region, and policies
// that name resources of another partition match none of it.
func TestARNsAreOfTheRegionsPartition(t *testing.T) {
	for region, partition := range map[string]string{"us-west-2": "aws", "us-gov-west-1": "aws-us-gov", "cn-north-1": "aws-cn"} {
		t.Run(region, func(t *testing.T) {
			spec := smallSpec()
			spec.Region, spec.Subnets[0].Zone = region, region+"a"
			roles := node()
			for name, of := range map[string]string{"right": partition, "wrong": "aws-iso"} {
				roles = append(roles, iam.Role{
					Name: name, TrustPolicy: []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}}`),
					Policies: map[string][]byte{"tag": []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "ec2:CreateTags", "Resource": "arn:` + of + `:ec2:*:*:subnet/*"}}`)},
				})
			}
			w := startAPI(t, world.Config{Spec: spec, Roles: roles})
			operator := w.Operator()
			key := credentials.NewStaticCredentialsProvider(operator.AccessKeyID, operator.SecretAccessKey, "")
			c := awsec2.New(awsec2.Options{Region: region, BaseEndpoint: aws.String(w.Endpoint()), Credentials: key})
			subnets, err := c.DescribeSubnets(t.Context(), &awsec2.DescribeSubnetsInput{})
			if err != nil {
				t.Fatal(err)
			}
			id := *subnets.Subnets[0].SubnetId
			if got, want := *subnets.Subnets[0].SubnetArn, "arn:"+partition+":ec2:"+region+":111122223333:subnet/"+id; got != want {
				t.Errorf("the subnet is %s, want %s", got, want)
			}
			instances, err := c.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := *instances.Reservations[0].Instances[0].IamInstanceProfile.Arn, "arn:"+partition+":iam::111122223333:instance-profile/node"; got != want {
				t.Errorf("the profile is %s, want %s", got, want)
			}
			identities := awssts.New(awssts.Options{Region: region, BaseEndpoint: aws.String(w.Endpoint()), Credentials: key})
			for role, allowed := range map[string]bool{"right": true, "wrong": false} {
				session, err := identities.AssumeRole(t.Context(), &awssts.AssumeRoleInput{
					RoleArn: aws.String("arn:" + partition + ":iam::111122223333:role/" + role), RoleSessionName: aws.String("session"),
				})
				if err != nil {
					t.Fatal(err)
				}
				if got, want := *session.AssumedRoleUser.Arn, "arn:"+partition+":sts::111122223333:assumed-role/"+role+"/session"; got != want {
					t.Errorf("the session is %s, want %s", got, want)
				}
				k := session.Credentials
				_, err = c.CreateTags(t.Context(), &awsec2.CreateTagsInput{Resources: []string{id}, Tags: []types.Tag{{Key: aws.String("k"), Value: aws.String("v")}}},
					func(o *awsec2.Options) {
						o.Credentials = credentials.NewStaticCredentialsProvider(*k.AccessKeyId, *k.SecretAccessKey, *k.SessionToken)
					})
				if (err == nil) != allowed {
					t.Errorf("role %s: %v, want allowed %v", role, err, allowed)
				}
			}
		})
	}
}
