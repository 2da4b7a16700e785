package ec2_test

import (
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// A long answer that comes at once arrives whole, over a real connection. With
// the SDK's own HTTP client every fourth of these fails.
func TestALongAnswerThatComesAtOnceIsRead(t *testing.T) {
	w := start(t)
	server := httptest.NewServer(w.wire.handler)
	defer server.Close()
	cfg := w.config
	cfg.BaseEndpoint = aws.String(server.URL)
	clients := ec2.NewClients(cfg)
	for name, api := range map[string]ec2.API{"kept": clients.Kept, "fresh": clients.Fresh, "reader": ec2.NewReader(cfg)} {
		for n := range 100 {
			out, err := api.DescribeInstanceTypes(t.Context(), &awsec2.DescribeInstanceTypesInput{})
			if err != nil || len(out.InstanceTypes) < 50 {
				t.Fatalf("%s, call %d: %v", name, n, err)
			}
		}
	}
}
