package ec2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// API is the part of the SDK's client that the product uses.
type API interface {
	CreateNetworkInterface(context.Context, *ec2.CreateNetworkInterfaceInput, ...func(*ec2.Options)) (*ec2.CreateNetworkInterfaceOutput, error)
	AttachNetworkInterface(context.Context, *ec2.AttachNetworkInterfaceInput, ...func(*ec2.Options)) (*ec2.AttachNetworkInterfaceOutput, error)
	ModifyNetworkInterfaceAttribute(context.Context, *ec2.ModifyNetworkInterfaceAttributeInput, ...func(*ec2.Options)) (*ec2.ModifyNetworkInterfaceAttributeOutput, error)
	AssignPrivateIpAddresses(context.Context, *ec2.AssignPrivateIpAddressesInput, ...func(*ec2.Options)) (*ec2.AssignPrivateIpAddressesOutput, error)
	UnassignPrivateIpAddresses(context.Context, *ec2.UnassignPrivateIpAddressesInput, ...func(*ec2.Options)) (*ec2.UnassignPrivateIpAddressesOutput, error)
	DetachNetworkInterface(context.Context, *ec2.DetachNetworkInterfaceInput, ...func(*ec2.Options)) (*ec2.DetachNetworkInterfaceOutput, error)
	DeleteNetworkInterface(context.Context, *ec2.DeleteNetworkInterfaceInput, ...func(*ec2.Options)) (*ec2.DeleteNetworkInterfaceOutput, error)

	CreateTags(context.Context, *ec2.CreateTagsInput, ...func(*ec2.Options)) (*ec2.CreateTagsOutput, error)
	AssociateTrunkInterface(context.Context, *ec2.AssociateTrunkInterfaceInput, ...func(*ec2.Options)) (*ec2.AssociateTrunkInterfaceOutput, error)
	DisassociateTrunkInterface(context.Context, *ec2.DisassociateTrunkInterfaceInput, ...func(*ec2.Options)) (*ec2.DisassociateTrunkInterfaceOutput, error)

	DescribeNetworkInterfaces(context.Context, *ec2.DescribeNetworkInterfacesInput, ...func(*ec2.Options)) (*ec2.DescribeNetworkInterfacesOutput, error)
	DescribeSubnets(context.Context, *ec2.DescribeSubnetsInput, ...func(*ec2.Options)) (*ec2.DescribeSubnetsOutput, error)
	DescribeSecurityGroups(context.Context, *ec2.DescribeSecurityGroupsInput, ...func(*ec2.Options)) (*ec2.DescribeSecurityGroupsOutput, error)
	DescribeTrunkInterfaceAssociations(context.Context, *ec2.DescribeTrunkInterfaceAssociationsInput, ...func(*ec2.Options)) (*ec2.DescribeTrunkInterfaceAssociationsOutput, error)
	DescribeRouteTables(context.Context, *ec2.DescribeRouteTablesInput, ...func(*ec2.Options)) (*ec2.DescribeRouteTablesOutput, error)
	// DescribeInstances is for the controller, which finds interfaces of terminated
	// instances with it, and the instances of trunks.
	DescribeInstances(context.Context, *ec2.DescribeInstancesInput, ...func(*ec2.Options)) (*ec2.DescribeInstancesOutput, error)
	DescribeInstanceTypes(context.Context, *ec2.DescribeInstanceTypesInput, ...func(*ec2.Options)) (*ec2.DescribeInstanceTypesOutput, error)
}

// Clients are two clients of the same EC2: Kept reuses connections, Fresh opens a
// new connection per call, for reads when a kept connection hangs. Both have the same
// credentials.
type Clients struct {
	Kept, Fresh API

	credentials *credentials // nil: they cannot be read again
}

// NewClients builds clients from the SDK's configuration (region, credentials,
// endpoint). The SDK's own retries are off: they would repeat calls that are not
// idempotent, so the executor retries.
func NewClients(cfg aws.Config) Clients {
	var shared *credentials
	if cfg.Credentials != nil {
		shared = &credentials{provider: cfg.Credentials}
		cfg.Credentials = shared
	}
	build := func(keepAlive bool) API {
		return ec2.NewFromConfig(cfg, func(o *ec2.Options) {
			o.Retryer = aws.NopRetryer{}
			o.HTTPClient = httpClient(cfg, keepAlive)
		})
	}
	return Clients{Kept: build(true), Fresh: build(false), credentials: shared}
}

// NewReader builds a client for calls outside the executor, with the SDK's retries: reads,
// and tags.
func NewReader(cfg aws.Config) *ec2.Client {
	return ec2.NewFromConfig(cfg, func(o *ec2.Options) {
		o.HTTPClient = httpClient(cfg, true)
	})
}

// httpClient has a timeout for every stage of a connection; the context bounds a
// whole call. With AWS_CA_BUNDLE set, the SDK's configuration has a buildable client
// that trusts that authority. A client of any other type is used unchanged.
func httpClient(cfg aws.Config, keepAlive bool) aws.HTTPClient {
	buildable, ok := cfg.HTTPClient.(*awshttp.BuildableClient)
	switch {
	case cfg.HTTPClient == nil:
		buildable = awshttp.NewBuildableClient()
	case !ok:
		return bufferedBody{next: cfg.HTTPClient}
	}
	return bufferedBody{reports: true, next: buildable.WithDialerOptions(func(d *net.Dialer) {
		d.Timeout, d.KeepAlive = 3*time.Second, 15*time.Second
	}).WithTransportOptions(func(t *http.Transport) {
		t.TLSHandshakeTimeout = 5 * time.Second
		t.ResponseHeaderTimeout = 30 * time.Second
		t.IdleConnTimeout = 60 * time.Second
		t.MaxIdleConnsPerHost = 8
		t.DisableKeepAlives = !keepAlive
	})}
}

// bufferedBody sends each request with a body from memory. The SDK closes a request's body
// as soon as the response begins. Go's transport may then still have to look for the end of
// the body; the closed one returns io.EOF from WriteTo, which is an error there, so that the
// transport closes the connection before the rest of the response is read.
// Without this, one in four responses of 62 KB from a server on the same machine was
// lost. Source: github.com/aws/aws-sdk-go-v2/issues/2737.
type bufferedBody struct {
	next    aws.HTTPClient
	reports bool // it reports its connections by httptrace
}

// Do implements aws.HTTPClient.
func (w bufferedBody) Do(r *http.Request) (*http.Response, error) {
	if w.reports {
		r = r.WithContext(connecting(r.Context()))
	}
	if r.Body == nil {
		return w.next.Do(r)
	}
	body, err := io.ReadAll(r.Body)
	if err := errors.Join(err, r.Body.Close()); err != nil {
		return nil, fmt.Errorf("read the request to send: %w", err)
	}
	sent := r.WithContext(r.Context()) // a copy: a RoundTripper must not change its request
	sent.Body, sent.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return w.next.Do(sent)
}
