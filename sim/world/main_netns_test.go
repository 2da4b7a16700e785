//go:build netns

package world_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

// sdkProgram is the argument with which this program is the one below.
const sdkProgram = "sdk-program"

// TestMain also runs as a program of an instance that uses AWS's SDK with its default
// configuration; see machine.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == sdkProgram {
		if err := useSDK(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	os.Exit(m.Run())
}

// seen is what sdkProgram prints, as JSON.
type seen struct {
	Regional, Global  string   // ARNs of the caller at both endpoints of STS
	Subnets, DualOnes []string // ids, from both endpoints of EC2
}

// useSDK is a program for EC2 as AWS's documents have it: the region and the credentials
// are those of the instance, and the endpoints those of the region.
func useSDK(ctx context.Context) error {
	cfg, err := config.LoadDefaultConfig(ctx, config.WithEC2IMDSRegion(), config.WithRetryMaxAttempts(1))
	if err != nil {
		return err
	}
	var out seen
	for region, arn := range map[string]*string{cfg.Region: &out.Regional, "aws-global": &out.Global} {
		who, err := sts.NewFromConfig(cfg, func(o *sts.Options) { o.Region = region }).GetCallerIdentity(ctx, nil)
		if err != nil {
			return err
		}
		*arn = aws.ToString(who.Arn)
	}
	for dual, ids := range map[aws.DualStackEndpointState]*[]string{
		aws.DualStackEndpointStateDisabled: &out.Subnets, aws.DualStackEndpointStateEnabled: &out.DualOnes,
	} {
		found, err := awsec2.NewFromConfig(cfg, func(o *awsec2.Options) {
			o.EndpointOptions.UseDualStackEndpoint = dual
		}).DescribeSubnets(ctx, nil)
		if err != nil {
			return err
		}
		for _, n := range found.Subnets {
			*ids = append(*ids, aws.ToString(n.SubnetId))
		}
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}
