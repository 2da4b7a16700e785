package ec2_test

import (
	"errors"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// seeded is the small world of these tests and of the awscli goldens.
func seeded() cloud.Spec {
	prefix := netip.MustParsePrefix
	return cloud.Spec{
		Region: "us-west-2", Account: "111122223333", Seed: 1, Quotas: cloud.Quotas{TrunkCalls: true},
		VPC: cloud.VPCSpec{
			Name: "lab", CIDRs: []netip.Prefix{prefix("10.0.0.0/16")}, CIDR6: prefix("2600:1f14:abc:de00::/56"), InternetGateway: true,
		},
		RouteTables: []cloud.RouteTableSpec{
			{Name: "private", Main: true},
			{Name: "public", Routes: []cloud.RouteSpec{{Destination: prefix("0.0.0.0/0"), Gateway: "igw"}}},
		},
		Subnets: []cloud.SubnetSpec{
			{Name: "a", Zone: "us-west-2a", CIDR: prefix("10.0.0.0/19"), CIDR6: prefix("2600:1f14:abc:de00::/64"), RouteTable: "public", Public: true},
			{Name: "b", Zone: "us-west-2b", CIDR: prefix("10.0.32.0/19")},
			{Name: "tiny", Zone: "us-west-2a", CIDR: prefix("10.0.64.0/27"), Tags: map[string]string{"kubernetes.io/role/cni": "1"}},
		},
		Groups: []cloud.GroupSpec{
			{Name: "node", Description: "nodes", Ingress: []cloud.RuleSpec{
				{Protocol: "-1", Groups: []string{"node"}},
				{Protocol: "tcp", From: 10250, To: 10250, Groups: []string{"control-plane"}, Note: "kubelet"},
			}},
			{Name: "control-plane", Description: "API server", Ingress: []cloud.RuleSpec{
				{Protocol: "tcp", From: 443, To: 443, CIDRs: []netip.Prefix{prefix("10.0.0.0/16")}},
			}},
		},
		Instances: []cloud.InstanceSpec{
			{Name: "node1", Type: "m5.xlarge", Subnet: "a", Groups: []string{"node"}, Role: "node", Metadata: cloud.DefaultMetadata()},
			{Name: "small", Type: "t3.medium", Subnet: "tiny", Groups: []string{"node"}, Role: "node", Metadata: cloud.DefaultMetadata()},
		},
		Hosts: []cloud.HostSpec{{Name: "cp", Subnet: "b", Groups: []string{"control-plane"}, Description: "Amazon EKS trunkline-lab"}},
	}
}

// account is a running API over a small account, with a client that may do
// everything.
type account struct {
	*awsec2.Client
	t      *testing.T
	cloud  *cloud.Cloud
	iam    *iam.Account
	faults *faults.Injector
	calls  *faults.Log
	url    string
	key    iam.Credentials
}

const allowAll = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`

// launch is the creation time of the small world.
func launch() time.Time { return time.Date(2026, 11, 21, 9, 30, 0, 0, time.UTC) }

func start(t *testing.T, spec cloud.Spec) *account {
	t.Helper()
	c, err := cloud.New(spec, cloud.Options{Instant: true, Now: launch})
	if err != nil {
		t.Fatal(err)
	}
	a := &account{t: t, cloud: c, iam: iam.New(spec.Account, 1, nil), faults: faults.New(1, nil), calls: &faults.Log{}}
	if a.key, err = a.iam.AddUser("tester", []byte(allowAll)); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(query.New(query.Options{
		Cloud: c, IAM: a.iam, Faults: a.faults, Calls: a.calls, Region: spec.Region,
	}, ec2.Service(c)))
	t.Cleanup(server.Close)
	t.Cleanup(a.faults.Close)
	a.url = server.URL
	a.Client = client(a.url, a.key.AccessKeyID, a.key.SecretAccessKey, "")
	return a
}

// as returns a client with temporary credentials of a role.
func (a *account) as(r iam.Role) *awsec2.Client { return a.asSession(r, "session") }

// asSession returns a client with temporary credentials that name their session.
func (a *account) asSession(r iam.Role, name string) *awsec2.Client {
	return a.issued(r, iam.Session{Name: name})
}

// asInstance returns a client with the credentials that metadata gives to an instance with
// a role: its id is the name of the session.
func (a *account) asInstance(r iam.Role, id vpc.InstanceID) *awsec2.Client {
	a.t.Helper()
	s := a.cloud.State()
	return a.issued(r, iam.Session{Name: string(id), Instance: iam.Instance{
		ARN: "arn:aws:ec2:" + s.Region + ":" + s.Account + ":instance/" + string(id), VPC: string(s.VPC.ID),
	}})
}

// asService returns a client with the key of AWS's EKS.
func (a *account) asService() *awsec2.Client {
	a.t.Helper()
	key, err := a.iam.AddService("eks.amazonaws.com", "AWSServiceRoleForAmazonEKS", "AmazonEKS")
	if err != nil {
		a.t.Fatal(err)
	}
	return client(a.url, key.AccessKeyID, key.SecretAccessKey, key.Token)
}

// issued returns a client with the credentials of a session of a role.
func (a *account) issued(r iam.Role, s iam.Session) *awsec2.Client {
	a.t.Helper()
	if err := a.iam.AddRole(r); err != nil {
		a.t.Fatal(err)
	}
	s.Role, s.Lifetime = r.Name, time.Hour
	c, _, err := a.iam.Issue(s)
	if err != nil {
		a.t.Fatal(err)
	}
	return client(a.url, c.AccessKeyID, c.SecretAccessKey, c.Token)
}

// isCode reports whether err is EC2's error of a code, on either side.
func isCode(err error, code string) bool {
	var api smithy.APIError
	var ours *cloud.Error
	switch {
	case errors.As(err, &api):
		return api.ErrorCode() == code
	case errors.As(err, &ours):
		return ours.Code == code
	}
	return false
}

// want fails the test unless err is EC2's error of a code and message.
func want(t *testing.T, err error, code, message string) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) {
		t.Fatalf("got %v, want %s", err, code)
	}
	if api.ErrorCode() != code || (message != "" && api.ErrorMessage() != message) {
		t.Fatalf("got %s: %s\nwant %s: %s", api.ErrorCode(), api.ErrorMessage(), code, message)
	}
}

func ok[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
