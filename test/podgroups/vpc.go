package podgroups

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/trunkline/trunkline/internal/control/groupfeed"
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

// VPC is an embedded VPC with the security groups web and db.
type VPC struct {
	EC2     *sdk.Client
	ID      vpc.ID
	Subnet  string
	Web, DB string
}

const region = "us-west-2"

// NewVPC makes the VPC.
func NewVPC(t testing.TB) *VPC {
	t.Helper()
	spec := cloud.Spec{
		Region: region, Account: "111122223333", Seed: 7,
		VPC:         cloud.VPCSpec{Name: "lab", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
		RouteTables: []cloud.RouteTableSpec{{Name: "main", Main: true}},
		Subnets:     []cloud.SubnetSpec{{Name: "a", Zone: region + "a", CIDR: netip.MustParsePrefix("10.0.0.0/22")}},
		Groups:      []cloud.GroupSpec{{Name: "web", Description: "web"}, {Name: "db", Description: "db"}},
	}
	c, err := cloud.New(spec, cloud.Options{Instant: true})
	if err != nil {
		t.Fatal(err)
	}
	account := iam.New(spec.Account, 1, nil)
	key, err := account.AddUser("controller", []byte(`{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}`))
	if err != nil {
		t.Fatal(err)
	}
	injector := faults.New(1, nil)
	t.Cleanup(injector.Close)
	server := httptest.NewServer(query.New(query.Options{Cloud: c, IAM: account, Faults: injector, Calls: &faults.Log{}, Region: region}, simec2.Service(c)))
	t.Cleanup(server.Close)
	v := &VPC{ID: c.State().VPC.ID, EC2: ec2.NewReader(aws.Config{
		Region: region, BaseEndpoint: aws.String(server.URL),
		Credentials: credentials.NewStaticCredentialsProvider(key.AccessKeyID, key.SecretAccessKey, ""),
	})}
	for _, g := range c.State().Groups {
		switch g.Name {
		case "web":
			v.Web = string(g.ID)
		case "db":
			v.DB = string(g.ID)
		}
	}
	for id := range c.State().Subnets {
		v.Subnet = string(id)
	}
	return v
}

// Feed starts what the controller does: it reads the VPC and writes SecurityGroups. Passes are the caller's.
func (v *VPC) Feed(t testing.TB, server *kubetest.Server) *groupfeed.Feed {
	t.Helper()
	client, err := kube.FromREST(server.REST())
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	policies := kube.NewGroupObjects(kube.GroupOptions{Client: client, Log: log})
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = policies.Run(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	return groupfeed.New(groupfeed.Deps{
		Log: log, Policies: policies, EC2: v.EC2, Client: client,
		Nodes: func(context.Context) ([]vpc.InstanceID, error) { return nil, nil },
	})
}
