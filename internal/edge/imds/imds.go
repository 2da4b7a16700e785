// Package imds reads the instance metadata service: which instance this is, and its
// network as EC2 last published it.
//
// It only reads, by IMDSv2, and decides nothing. Addresses from it are never given
// to pods: the service lags behind EC2 and has listed addresses that had moved to
// other instances. The agent reads the node's identity at start, and then every half minute
// the VPC's ranges and the interfaces (Listed): a difference from its record is a reason to
// read EC2. Without the service, the firmware of some instances has their id
// (FirmwareInstance).
package imds

import (
	"cmp"
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

// What is wrong with a value.
var (
	// ErrNone is for a value that the service does not have for this instance.
	ErrNone = errors.New("the metadata service has no such value")
	// errOdd is for a value that is not of its kind.
	errOdd = errors.New("the value cannot be read")
)

// Options of New.
type Options struct {
	// Endpoint is the base URL; the SDK's own choice when empty (its environment,
	// else http://169.254.169.254).
	Endpoint string
	// Timeout of one request; 0: defaultTimeout.
	Timeout time.Duration
	// Tries of one request; 0: defaultTries.
	Tries int
}

const (
	defaultTimeout = 5 * time.Second
	defaultTries   = 3
)

// Client reads the service. Its methods may be called from any goroutine.
type Client struct {
	api     *awsimds.Client
	timeout time.Duration
}

// New returns a client. cfg is the SDK's configuration; only what concerns the
// metadata service is used.
func New(cfg aws.Config, o Options) *Client {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Tries = cmp.Or(o.Tries, defaultTries)
	api := awsimds.NewFromConfig(cfg, func(opts *awsimds.Options) {
		opts.EnableFallback = aws.FalseTernary // IMDSv2 only: version 1 needs no token
		opts.Retryer = retry.AddWithMaxAttempts(retry.NewStandard(), o.Tries)
		if o.Endpoint != "" {
			opts.Endpoint = o.Endpoint
		}
	})
	return &Client{api: api, timeout: o.Timeout}
}

// Identity identifies the instance. It does not change while the instance runs.
type Identity struct {
	Instance   vpc.InstanceID
	Type       string // such as "m5.xlarge"
	Region     string
	Zone       string
	Account    string
	PrimaryMAC vpc.MAC
	PrimaryIP  netip.Addr // IPv4
}

// Identity reads the instance's identity. An error names the part that is missing.
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

// Interface is one interface as the service describes it, possibly minutes ago.
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
	LocalIPv4s  []netip.Addr // the first is the primary one; never given to pods
	SubnetIPv6s []netip.Prefix
	// Unreadable are the values, and the lines of its lists, that were skipped, each with its
	// path.
	Unreadable []string
}

// Interface reads the interface with mac. ErrNone: the service does not know it yet,
// or no more. A value that cannot be read is reported beside the others and is zero, unless
// nothing is left of the VPC's IPv4 ranges, without which packets would get another source.
func (c *Client) Interface(ctx context.Context, mac vpc.MAC) (Interface, error) {
	at := "network/interfaces/macs/" + mac.String() + "/"
	out := Interface{MAC: mac}
	id, err := c.get(ctx, at+"interface-id")
	if err != nil {
		return Interface{}, err
	}
	out.ID = vpc.ENIID(id)
	for path, into := range map[string]*int{"device-number": &out.Device, "network-card": &out.Card} {
		if *into, err = c.number(ctx, at+path); errors.Is(err, errOdd) {
			out.Unreadable = append(out.Unreadable, err.Error())
		} else if err != nil && !errors.Is(err, ErrNone) {
			return Interface{}, err
		}
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

// lists reads the values of an interface that have any number of lines.
func (c *Client) lists(ctx context.Context, at string, out *Interface) (err error) {
	var cidrs []netip.Prefix
	for path, into := range map[string]*[]netip.Prefix{
		"subnet-ipv4-cidr-block": &cidrs, "vpc-ipv6-cidr-blocks": &out.VPCv6CIDRs, "subnet-ipv6-cidr-blocks": &out.SubnetIPv6s,
	} {
		if *into, err = list(ctx, c, at+path, &out.Unreadable, netip.ParsePrefix); err != nil && !errors.Is(err, errOdd) {
			return err
		}
	}
	if len(cidrs) > 0 {
		out.SubnetCIDR = cidrs[0]
	}
	if out.VPCv4CIDRs, err = list(ctx, c, at+"vpc-ipv4-cidr-blocks", &out.Unreadable, netip.ParsePrefix); err != nil {
		return err
	}
	if out.LocalIPv4s, err = list(ctx, c, at+"local-ipv4s", &out.Unreadable, netip.ParseAddr); err != nil && !errors.Is(err, errOdd) {
		return err
	}
	out.Groups, err = list(ctx, c, at+"security-group-ids", &out.Unreadable, groupID)
	return err
}

func groupID(s string) (vpc.SecurityGroupID, error) { return vpc.SecurityGroupID(s), nil }

// VPCCIDRs returns the IPv4 ranges of the VPC, from the primary interface's metadata:
// packets of pods to them are not translated. Lines that cannot be read are returned beside
// the others.
func (c *Client) VPCCIDRs(ctx context.Context, primary vpc.MAC) (cidrs []netip.Prefix, unreadable []string, err error) {
	at := "network/interfaces/macs/" + primary.String() + "/vpc-ipv4-cidr-blocks"
	cidrs, err = list(ctx, c, at, &unreadable, netip.ParsePrefix)
	if err == nil && len(cidrs) == 0 {
		return nil, nil, fmt.Errorf("read metadata %s: %w", at, ErrNone)
	}
	return cidrs, unreadable, err
}

// maxValue bounds the size of one value, in bytes.
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

// number reads a value that is a number. errOdd: it is none.
func (c *Client) number(ctx context.Context, path string) (int, error) {
	raw, err := c.get(ctx, path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(raw)
	if err != nil {
		return 0, fmt.Errorf("read metadata %s: %w: %q is not a number", path, errOdd, raw)
	}
	return n, nil
}

// list reads a value of one entry per line; a missing value is an empty list. Lines that
// parse refuses are skipped and added to unreadable; it is errOdd if no other is left.
func list[T any](ctx context.Context, c *Client, path string, unreadable *[]string, parse func(string) (T, error)) ([]T, error) {
	raw, err := c.get(ctx, path)
	if errors.Is(err, ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []T
	var refused error
	for _, line := range strings.Fields(raw) {
		v, err := parse(line)
		if err != nil {
			refused = errors.Join(refused, err)
			*unreadable = append(*unreadable, fmt.Sprintf("%s: %v", path, err))
			continue
		}
		out = append(out, v)
	}
	if refused != nil && len(out) == 0 {
		return nil, fmt.Errorf("read metadata %s: %w: %w", path, errOdd, refused)
	}
	return out, nil
}

// reason returns ErrNone for a 404, and other errors without the SDK's prefixes.
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
