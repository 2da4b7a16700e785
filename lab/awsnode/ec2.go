package awsnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// instance is the EC2 instance that this process runs on, with the role of its profile.
type instance struct {
	id       string
	kind     string
	cluster  string // CLUSTER_NAME
	metadata *imds.Client
	ec2      *ec2.Client
}

// thisInstance asks the metadata service which instance this is.
func thisInstance(ctx context.Context, cluster string) (instance, error) {
	metadata := imds.New(imds.Options{})
	doc, err := metadata.GetInstanceIdentityDocument(ctx, nil)
	if err != nil {
		return instance{}, fmt.Errorf("read the instance's identity: %w", err)
	}
	cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(doc.Region))
	if err != nil {
		return instance{}, fmt.Errorf("configure AWS's SDK: %w", err)
	}
	return instance{
		id: doc.InstanceID, kind: doc.InstanceType, cluster: cluster, metadata: metadata, ec2: ec2.NewFromConfig(cfg),
	}, nil
}

// attached lists the instance's interfaces in the order of their device indexes.
func (i instance) attached(ctx context.Context) ([]types.NetworkInterface, error) {
	out, err := i.ec2.DescribeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{
		Filters: []types.Filter{{Name: aws.String("attachment.instance-id"), Values: []string{i.id}}},
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out.NetworkInterfaces, func(a, b types.NetworkInterface) int { return int(device(a) - device(b)) })
	if len(out.NetworkInterfaces) == 0 {
		return nil, fmt.Errorf("EC2 shows no interface of %s", i.id)
	}
	return out.NetworkInterfaces, nil
}

func device(n types.NetworkInterface) int32 { return aws.ToInt32(n.Attachment.DeviceIndex) }

// tags are those of an interface that AWS's daemon has made. Source: createENITags in
// pkg/awsutils/awsutils.go.
func (i instance) tags() []types.Tag {
	var out []types.Tag
	for _, t := range [][2]string{
		{vpc.TagInstanceID, i.id},
		{vpc.TagCreatedAt, time.Now().UTC().Format(time.RFC3339)},
		{vpc.TagClusterName, i.cluster},
		{vpc.TagOwner, "amazon-vpc-cni"},
	} {
		out = append(out, types.Tag{Key: aws.String(t[0]), Value: aws.String(t[1])})
	}
	return out
}

// warm makes the addresses for pods: all that the primary interface can have and a second
// interface with as many, as with the default WARM_ENI_TARGET=1; or a /28 on each of both, as
// where the primary interface had no free slot when prefix delegation was enabled. Both stay
// as they are on a later start. Source: AllocENI, AllocIPAddresses, attachENI and TagENI
// in pkg/awsutils/awsutils.go.
func (i instance) warm(ctx context.Context, prefixes bool) error {
	have, err := i.attached(ctx)
	if err != nil {
		return err
	}
	primary := have[0]
	if len(primary.PrivateIpAddresses) == 1 && len(primary.Ipv4Prefixes) == 0 {
		if err := i.fill(ctx, primary, prefixes); err != nil {
			return fmt.Errorf("assign addresses to %s: %w", aws.ToString(primary.NetworkInterfaceId), err)
		}
	}
	if len(have) > 1 {
		return nil
	}
	return i.create(ctx, primary, prefixes)
}

// fill tags the primary interface and assigns it addresses.
func (i instance) fill(ctx context.Context, primary types.NetworkInterface, prefixes bool) error {
	_, err := i.ec2.CreateTags(ctx, &ec2.CreateTagsInput{Resources: []string{aws.ToString(primary.NetworkInterfaceId)}, Tags: i.tags()[:1]})
	if err != nil {
		return err
	}
	in := &ec2.AssignPrivateIpAddressesInput{NetworkInterfaceId: primary.NetworkInterfaceId}
	if prefixes {
		in.Ipv4PrefixCount = aws.Int32(1)
	} else if in.SecondaryPrivateIpAddressCount, err = i.perInterface(ctx); err != nil {
		return err
	}
	_, err = i.ec2.AssignPrivateIpAddresses(ctx, in)
	return err
}

// perInterface returns how many addresses for pods an interface can have.
func (i instance) perInterface(ctx context.Context) (*int32, error) {
	out, err := i.ec2.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{types.InstanceType(i.kind)}})
	if err != nil {
		return nil, err
	}
	if len(out.InstanceTypes) != 1 {
		return nil, fmt.Errorf("EC2 describes %d types named %s", len(out.InstanceTypes), i.kind)
	}
	return aws.Int32(aws.ToInt32(out.InstanceTypes[0].NetworkInfo.Ipv4AddressesPerInterface) - 1), nil
}

// create makes an interface with the subnet and the groups of the primary one, and attaches
// it as device 1.
func (i instance) create(ctx context.Context, primary types.NetworkInterface, prefixes bool) error {
	in := &ec2.CreateNetworkInterfaceInput{
		SubnetId: primary.SubnetId, Description: aws.String("aws-K8S-" + i.id),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: i.tags()}},
	}
	for _, g := range primary.Groups {
		in.Groups = append(in.Groups, aws.ToString(g.GroupId))
	}
	var err error
	if prefixes {
		in.Ipv4PrefixCount = aws.Int32(1)
	} else if in.SecondaryPrivateIpAddressCount, err = i.perInterface(ctx); err != nil {
		return err
	}
	made, err := i.ec2.CreateNetworkInterface(ctx, in)
	if err != nil {
		return fmt.Errorf("create an interface: %w", err)
	}
	id := made.NetworkInterface.NetworkInterfaceId
	attached, err := i.ec2.AttachNetworkInterface(ctx, &ec2.AttachNetworkInterfaceInput{
		InstanceId: aws.String(i.id), NetworkInterfaceId: id, DeviceIndex: aws.Int32(1),
	})
	if err == nil {
		_, err = i.ec2.ModifyNetworkInterfaceAttribute(ctx, &ec2.ModifyNetworkInterfaceAttributeInput{
			NetworkInterfaceId: id,
			Attachment:         &types.NetworkInterfaceAttachmentChanges{AttachmentId: attached.AttachmentId, DeleteOnTermination: aws.Bool(true)},
		})
	}
	if err != nil {
		return fmt.Errorf("attach %s: %w", aws.ToString(id), err)
	}
	return nil
}

// interfaces describes the instance's interfaces, without the names of their links.
func (i instance) interfaces(ctx context.Context) ([]Interface, error) {
	have, err := i.attached(ctx)
	if err != nil {
		return nil, err
	}
	var out []Interface
	var errs []error
	for _, n := range have {
		row := Interface{ID: vpc.ENIID(aws.ToString(n.NetworkInterfaceId)), MAC: aws.ToString(n.MacAddress), Device: int(device(n))}
		var err error
		if row.Subnet, err = i.subnet(ctx, row.MAC); err != nil {
			errs = append(errs, err)
		}
		for _, a := range n.PrivateIpAddresses {
			addr, err := netip.ParseAddr(aws.ToString(a.PrivateIpAddress))
			errs = append(errs, err)
			if aws.ToBool(a.Primary) {
				row.Primary = addr
			} else {
				row.Secondary = append(row.Secondary, addr)
			}
		}
		for _, p := range n.Ipv4Prefixes {
			prefix, err := netip.ParsePrefix(aws.ToString(p.Ipv4Prefix))
			errs = append(errs, err)
			row.Prefixes = append(row.Prefixes, prefix)
		}
		out = append(out, row)
	}
	return out, errors.Join(errs...)
}

// subnet reads the range of the subnet of the interface with a MAC.
func (i instance) subnet(ctx context.Context, mac string) (netip.Prefix, error) {
	text, err := i.document(ctx, "network/interfaces/macs/"+mac+"/subnet-ipv4-cidr-block")
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.ParsePrefix(text)
}

// document reads a document of the metadata service.
func (i instance) document(ctx context.Context, path string) (string, error) {
	out, err := i.metadata.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		return "", fmt.Errorf("read metadata %s: %w", path, err)
	}
	defer out.Content.Close()
	text, err := io.ReadAll(out.Content)
	return string(text), err
}

// ranges are those of the VPC.
func (i instance) ranges(ctx context.Context, mac string) (out []netip.Prefix, err error) {
	text, err := i.document(ctx, "network/interfaces/macs/"+mac+"/vpc-ipv4-cidr-blocks")
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Fields(text) {
		p, err := netip.ParsePrefix(line)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
