// Package imds reads the instance metadata service of the machine it runs on:
// which instance this is, and what its network looked like when EC2 last told it.
//
// It only reads, by IMDSv2, and decides nothing. What it says about addresses is
// never given out: the service lags behind EC2 and has claimed addresses that had
// moved to other instances. Package app asks it at start for the identity of the
// node and for the ranges of the VPC.
package imds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awsimds "github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// ErrNone says that the service answers, and has no such value for this instance.
var ErrNone = errors.New("the metadata service has no such value")

// Options of New.
type Options struct {
	// Endpoint is the base URL; the SDK's own choice when empty (its environment,
	// else http://169.254.169.254).
	Endpoint string
	// Timeout of one request, default 5 s.
	Timeout time.Duration
	// Tries of one request, default 3.
	Tries int
}

// Client reads the service. Its methods may be called from any goroutine.
type Client struct {
	api     *awsimds.Client
	timeout time.Duration
}

// New returns a client. cfg is the SDK's configuration; only what concerns the
// metadata service is used.
func New(cfg aws.Config, o Options) *Client {
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Tries == 0 {
		o.Tries = 3
	}
	api := awsimds.NewFromConfig(cfg, func(opts *awsimds.Options) {
		opts.EnableFallback = aws.FalseTernary // version 1 has no protection against a pod's mistake
		opts.Retryer = retry.AddWithMaxAttempts(retry.NewStandard(), o.Tries)
		if o.Endpoint != "" {
			opts.Endpoint = o.Endpoint
		}
	})
	return &Client{api: api, timeout: o.Timeout}
}

// Identity is which machine this is. It does not change while the machine runs.
type Identity struct {
	Instance   vpc.InstanceID
	Type       string // such as "m5.xlarge"
	Region     string
	Zone       string
	Account    string
	PrimaryMAC vpc.MAC
	PrimaryIP  netip.Addr // IPv4
}

// Identity reads which machine this is, or which part cannot be read.
func (c *Client) Identity(ctx context.Context) (Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*c.timeout)
	defer cancel()
	doc, err := c.api.GetInstanceIdentityDocument(ctx, nil)
	if err != nil {
		return Identity{}, fmt.Errorf("read instance identity document: %w", reason(err))
	}
	id := Identity{
		Instance: vpc.InstanceID(doc.InstanceID), Type: doc.InstanceType,
		Region: doc.Region, Zone: doc.AvailabilityZone, Account: doc.AccountID,
	}
	for what, value := range map[string]string{"instance id": doc.InstanceID, "instance type": doc.InstanceType, "region": doc.Region, "zone": doc.AvailabilityZone} {
		if value == "" {
			return Identity{}, fmt.Errorf("read instance identity document: it has no %s", what)
		}
	}
	mac, err := c.get(ctx, "mac")
	if err != nil {
		return Identity{}, err
	}
	if id.PrimaryMAC, err = vpc.ParseMAC(mac); err != nil {
		return Identity{}, fmt.Errorf("read metadata mac: %w", err)
	}
	ip, err := c.get(ctx, "local-ipv4")
	if err != nil {
		return Identity{}, err
	}
	if id.PrimaryIP, err = netip.ParseAddr(ip); err != nil {
		return Identity{}, fmt.Errorf("read metadata local-ipv4: %w", err)
	}
	return id, nil
}

// Interface is what the service says about one interface. It can be minutes old.
type Interface struct {
	MAC         vpc.MAC
	ID          vpc.ENIID
	Device      int
	Card        int
	VPC         vpc.ID
	Subnet      vpc.SubnetID
	SubnetCIDR  netip.Prefix
	VPCv4CIDRs  []netip.Prefix
	VPCv6CIDRs  []netip.Prefix
	Groups      []vpc.SecurityGroupID
	LocalIPv4s  []netip.Addr // the first is the primary one; never give these out
	SubnetIPv6s []netip.Prefix
}

// Interface reads what the service says about the interface with mac. ErrNone: it
// does not know it (yet).
func (c *Client) Interface(ctx context.Context, mac vpc.MAC) (Interface, error) {
	at := "network/interfaces/macs/" + mac.String() + "/"
	out := Interface{MAC: mac}
	id, err := c.get(ctx, at+"interface-id")
	if err != nil {
		return Interface{}, err
	}
	out.ID = vpc.ENIID(id)
	if out.Device, err = c.number(ctx, at+"device-number", false); err != nil {
		return Interface{}, err
	}
	if out.Card, err = c.number(ctx, at+"network-card", true); err != nil {
		return Interface{}, err
	}
	vpcID, err := c.get(ctx, at+"vpc-id")
	if err != nil {
		return Interface{}, err
	}
	subnet, err := c.get(ctx, at+"subnet-id")
	if err != nil {
		return Interface{}, err
	}
	out.VPC, out.Subnet = vpc.ID(vpcID), vpc.SubnetID(subnet)
	return out, c.lists(ctx, at, &out)
}

// lists reads the values of an interface that have several lines, or none.
func (c *Client) lists(ctx context.Context, at string, out *Interface) (err error) {
	cidrs, err := list(ctx, c, at+"subnet-ipv4-cidr-block", netip.ParsePrefix)
	if err != nil {
		return err
	}
	if len(cidrs) > 0 {
		out.SubnetCIDR = cidrs[0]
	}
	if out.VPCv4CIDRs, err = list(ctx, c, at+"vpc-ipv4-cidr-blocks", netip.ParsePrefix); err != nil {
		return err
	}
	if out.VPCv6CIDRs, err = list(ctx, c, at+"vpc-ipv6-cidr-blocks", netip.ParsePrefix); err != nil {
		return err
	}
	if out.SubnetIPv6s, err = list(ctx, c, at+"subnet-ipv6-cidr-blocks", netip.ParsePrefix); err != nil {
		return err
	}
	if out.LocalIPv4s, err = list(ctx, c, at+"local-ipv4s", netip.ParseAddr); err != nil {
		return err
	}
	out.Groups, err = list(ctx, c, at+"security-group-ids", func(s string) (vpc.SecurityGroupID, error) {
		return vpc.SecurityGroupID(s), nil
	})
	return err
}

// VPCCIDRs returns the IPv4 ranges of the VPC as the primary interface's metadata
// has them: where pods' packets are not translated.
func (c *Client) VPCCIDRs(ctx context.Context, primary vpc.MAC) ([]netip.Prefix, error) {
	at := "network/interfaces/macs/" + primary.String() + "/vpc-ipv4-cidr-blocks"
	cidrs, err := list(ctx, c, at, netip.ParsePrefix)
	if err == nil && len(cidrs) == 0 {
		return nil, fmt.Errorf("read metadata %s: %w", at, ErrNone)
	}
	return cidrs, err
}

// maxValue bounds what is read of one value, in bytes.
const maxValue = 64 << 10

// get reads one value, without white space around it.
func (c *Client) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	out, err := c.api.GetMetadata(ctx, &awsimds.GetMetadataInput{Path: path})
	if err != nil {
		return "", fmt.Errorf("read metadata %s: %w", path, reason(err))
	}
	defer out.Content.Close()
	raw, err := io.ReadAll(io.LimitReader(out.Content, maxValue+1))
	if err != nil {
		return "", fmt.Errorf("read metadata %s: %w", path, err)
	}
	if len(raw) > maxValue {
		return "", fmt.Errorf("read metadata %s: more than %d bytes", path, maxValue)
	}
	return strings.TrimSpace(string(raw)), nil
}

// number reads a value that is a number; where it may be missing it is 0 then.
func (c *Client) number(ctx context.Context, path string, optional bool) (int, error) {
	raw, err := c.get(ctx, path)
	if optional && errors.Is(err, ErrNone) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(raw)
	if err != nil {
		return 0, fmt.Errorf("read metadata %s: %q is not a number", path, raw)
	}
	return n, nil
}

// list reads a value of one entry per line; none at all is an empty list.
func list[T any](ctx context.Context, c *Client, path string, parse func(string) (T, error)) ([]T, error) {
	raw, err := c.get(ctx, path)
	if errors.Is(err, ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []T
	for _, line := range strings.Fields(raw) {
		v, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("read metadata %s: %w", path, err)
		}
		out = append(out, v)
	}
	return out, nil
}

// reason types a 404, and takes the SDK's layers off what people read.
func reason(err error) error {
	var reply *smithyhttp.ResponseError
	if errors.As(err, &reply) && reply.HTTPStatusCode() == http.StatusNotFound {
		return ErrNone
	}
	var op *smithy.OperationError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
