package ec2_test

import (
	"bytes"
	"encoding/pem"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// A long response that the server sends at once is read completely, over a real
// connection. With the SDK's own HTTP client one in four of these reads fails.
func TestALongResponseSentAtOnceIsRead(t *testing.T) {
	w := start(t)
	server := httptest.NewServer(w.wire.handler)
	defer server.Close()
	readLong(t, w.config, server.URL)
}

// With AWS_CA_BUNDLE the SDK's configuration comes with an HTTP client.
func TestALongResponseIsReadWithAPrivateCA(t *testing.T) {
	w := start(t)
	server := httptest.NewTLSServer(w.wire.handler)
	defer server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	cfg, err := awsconfig.LoadDefaultConfig(t.Context(), awsconfig.WithCustomCABundle(bytes.NewReader(authority)),
		awsconfig.WithRegion(region), awsconfig.WithCredentialsProvider(w.config.Credentials))
	if err != nil {
		t.Fatal(err)
	}
	readLong(t, cfg, server.URL)
}

func readLong(t *testing.T, cfg aws.Config, endpoint string) {
	t.Helper()
	cfg.BaseEndpoint = aws.String(endpoint)
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
