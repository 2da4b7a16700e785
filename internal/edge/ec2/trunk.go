package ec2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Trunks carries out the actions of core/trunk with an Executor: its budgets, brakes and
// metrics. Each call of Do is one try. The state of core/trunk keeps what is in flight, and
// repeats it after its back-off; see its package comment.
type Trunks struct {
	*Executor
	Cluster string // name of the cluster, for tags; may be empty
}

// Do makes one try of an action. again: an earlier try may have had its effect. A try of an
// action that an earlier one has completed succeeds with the outcome of that one.
//
// Errors: see TrunkFailure.
func (t Trunks) Do(ctx context.Context, a trunk.Action, again bool) (trunk.Outcome, error) {
	if v, why := t.Brake(); !a.Kind.AllowedBy(v) {
		return trunk.Outcome{}, fmt.Errorf("%s: %w (%s, %s)", a, ErrFrozen, v, why)
	}
	t.metrics.open.Inc()
	defer t.metrics.open.Dec()
	s := trunkSender{sender{t.Executor}, t.Cluster}
	switch a.Kind {
	case trunk.CreateTrunk, trunk.CreateBranch:
		return s.create(ctx, a, again)
	case trunk.AttachTrunk:
		return trunk.Outcome{}, s.attach(ctx, a, again)
	case trunk.TagBranch:
		return trunk.Outcome{}, s.tag(ctx, a)
	case trunk.Associate:
		return s.associate(ctx, a)
	case trunk.SetGroups:
		return trunk.Outcome{}, s.setGroups(ctx, a)
	case trunk.Disassociate:
		return trunk.Outcome{}, s.disassociate(ctx, a)
	case trunk.DeleteBranch, trunk.DeleteTrunk:
		return trunk.Outcome{}, s.delete(ctx, a, again)
	case trunk.Bind, trunk.Release, trunk.Adopt: // not carried out at EC2
	}
	return trunk.Outcome{}, fmt.Errorf("%s: it is no call to EC2: %w", a, cloud.ErrUnsupported)
}

// trunkSender makes the calls.
type trunkSender struct {
	sender
	cluster string
}

// tokenValid is how long EC2 answers a client token with what its first request made. EC2 states no
// bound for CreateNetworkInterface; later the interface is searched for by its tag.
const tokenValid = time.Hour

func (s trunkSender) create(ctx context.Context, a trunk.Action, again bool) (trunk.Outcome, error) {
	if again && time.Since(a.Began) > tokenValid {
		if made, found, err := s.created(ctx, a); err != nil || found {
			return made, err
		}
	}
	made, err := s.createInterface(ctx, s.createRequest(a))
	if Code(err) == "IdempotentParameterMismatch" { // made by an earlier version, with other tags
		if made, found, err := s.created(ctx, a); err != nil || found {
			return made, err
		}
		return trunk.Outcome{}, fmt.Errorf("%w: %w", ErrOpen, err)
	}
	if err != nil {
		return trunk.Outcome{}, err
	}
	return trunkOutcome(made), nil
}

// created searches for the interface that an earlier try made.
func (s trunkSender) created(ctx context.Context, a trunk.Action) (trunk.Outcome, bool, error) {
	found, err := s.x.byTag(ctx, vpc.TagIntent, string(a.ID))
	if err != nil {
		return trunk.Outcome{}, false, fmt.Errorf("%w: %w", ErrOpen, err)
	}
	if len(found) == 0 {
		return trunk.Outcome{}, false, nil
	}
	return trunkOutcome(found[0]), true, nil
}

func trunkOutcome(i Interface) trunk.Outcome {
	o := trunk.Outcome{ENI: i.ID, MAC: i.MAC, IPv4: i.Primary, Groups: trunk.NewGroups(i.Groups...)}
	if len(i.IPv6) > 0 {
		o.IPv6 = i.IPv6[0]
	}
	return o
}

// createRequest has the same parameters for each try of an action: EC2 refuses a client token
// with other ones.
func (s trunkSender) createRequest(a trunk.Action) *ec2.CreateNetworkInterfaceInput {
	tags := map[string]string{
		vpc.TagIntent: string(a.ID), vpc.TagManagedBy: vpc.ManagedByController, vpc.TagOwner: vpc.OwnerResourceController,
		vpc.TagInstanceID: string(a.Instance), vpc.TagCreatedAt: a.Began.UTC().Format(time.RFC3339),
	}
	if s.cluster != "" {
		tags[vpc.TagClusterName] = s.cluster
		tags[vpc.TagClusterOfPfx+s.cluster] = vpc.OwnedByCluster
	}
	req := &ec2.CreateNetworkInterfaceInput{
		SubnetId: aws.String(string(a.Subnet)), ClientToken: aws.String(string(a.ID)), Groups: groupTexts(a.Groups),
		Description:       aws.String(vpc.DescriptionBranch),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeNetworkInterface, Tags: tagList(tags)}},
	}
	if a.Kind == trunk.CreateTrunk {
		req.Description, req.InterfaceType = aws.String(vpc.DescriptionTrunk), types.NetworkInterfaceCreationTypeTrunk
	}
	return req
}

// tagList returns tags in the order of their keys.
func tagList(tags map[string]string) (out []types.Tag) {
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, types.Tag{Key: aws.String(k), Value: aws.String(tags[k])})
	}
	return out
}

func groupTexts(groups trunk.Groups) []string {
	out := make([]string, len(groups))
	for i, g := range groups {
		out[i] = string(g)
	}
	return out
}

// attach attaches a trunk and has EC2 delete it with its instance. The attachment is searched
// for if an earlier try may have made it, and if EC2 refuses: because the trunk is attached, or
// because the device index is another interface's.
func (s trunkSender) attach(ctx context.Context, a trunk.Action, again bool) error {
	if again {
		if done, err := s.attached(ctx, a); done || err != nil {
			return err
		}
	}
	var reply *ec2.AttachNetworkInterfaceOutput
	err := s.change(ctx, "AttachNetworkInterface", string(a.ENI), func(ctx context.Context, api API) (err error) {
		reply, err = api.AttachNetworkInterface(ctx, &ec2.AttachNetworkInterfaceInput{
			InstanceId: aws.String(string(a.Instance)), NetworkInterfaceId: aws.String(string(a.ENI)), DeviceIndex: aws.Int32(int32(a.Device)),
		})
		return err
	})
	if err == nil {
		return s.complete(ctx, a, vpc.AttachmentID(aws.ToString(reply.AttachmentId)))
	}
	if inUse(err) {
		if done, readErr := s.attached(ctx, a); done || readErr != nil {
			return readErr
		}
	}
	return err
}

// attached completes an attachment that EC2 shows; done is false if it shows none.
func (s trunkSender) attached(ctx context.Context, a trunk.Action) (done bool, _ error) {
	eni, err := s.x.Interface(ctx, a.ENI)
	switch {
	case IsNotFound(err): // or not shown yet
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%w: %w", ErrOpen, err)
	case !eni.On(a.Instance):
		return false, nil
	case eni.Attachment.DeleteOnTermination:
		return true, nil
	}
	return true, s.complete(ctx, a, eni.Attachment.ID)
}

// complete sets DeleteOnTermination. Without it the action has a part of its effect only.
func (s trunkSender) complete(ctx context.Context, a trunk.Action, id vpc.AttachmentID) error {
	if err := s.deleteOnTermination(ctx, a.ENI, id); err != nil {
		return fmt.Errorf("%w: it is attached, and stays when its instance is terminated: %w", ErrOpen, err)
	}
	return nil
}

func (s trunkSender) tag(ctx context.Context, a trunk.Action) error {
	tags := tagList(map[string]string{vpc.TagTrunkVLAN: fmt.Sprint(a.VLAN), vpc.TagTrunkENI: string(a.Trunk)})
	return s.change(ctx, "CreateTags", string(a.ENI), func(ctx context.Context, api API) error {
		_, err := api.CreateTags(ctx, &ec2.CreateTagsInput{Resources: []string{string(a.ENI)}, Tags: tags})
		return err
	})
}

// associate returns the association of an earlier try by its client token, or, where EC2 does not
// know the token any more, by what it shows of the branch.
func (s trunkSender) associate(ctx context.Context, a trunk.Action) (trunk.Outcome, error) {
	var reply *ec2.AssociateTrunkInterfaceOutput
	err := s.change(ctx, "AssociateTrunkInterface", string(a.ENI), func(ctx context.Context, api API) (err error) {
		reply, err = api.AssociateTrunkInterface(ctx, &ec2.AssociateTrunkInterfaceInput{
			BranchInterfaceId: aws.String(string(a.ENI)), TrunkInterfaceId: aws.String(string(a.Trunk)), VlanId: aws.Int32(int32(a.VLAN)),
			ClientToken: aws.String(string(a.ID)),
		})
		return err
	})
	switch {
	case err == nil && reply.InterfaceAssociation != nil && aws.ToString(reply.InterfaceAssociation.AssociationId) != "":
		return trunk.Outcome{Association: trunk.AssociationID(*reply.InterfaceAssociation.AssociationId)}, nil
	case err == nil:
		return trunk.Outcome{}, fmt.Errorf("%w: %w", ErrOpen, &Error{Action: "AssociateTrunkInterface", Object: string(a.ENI), Err: errors.New("the reply holds no association")})
	case isVLANInUse(err), inUse(err), Code(err) == "IdempotentParameterMismatch":
		found, readErr := Trunks{Executor: s.x}.Associations(ctx)
		if readErr != nil {
			return trunk.Outcome{}, fmt.Errorf("%w: %w", ErrOpen, readErr)
		}
		if is := found.by[a.ENI]; is.Trunk == a.Trunk && is.VLAN == a.VLAN && is.ID != "" {
			return trunk.Outcome{Association: is.ID}, nil
		}
	}
	return trunk.Outcome{}, err
}

func (s trunkSender) setGroups(ctx context.Context, a trunk.Action) error {
	return s.change(ctx, "ModifyNetworkInterfaceAttribute", string(a.ENI), func(ctx context.Context, api API) error {
		_, err := api.ModifyNetworkInterfaceAttribute(ctx, &ec2.ModifyNetworkInterfaceAttributeInput{
			NetworkInterfaceId: aws.String(string(a.ENI)), Groups: groupTexts(a.Groups),
		})
		return err
	})
}

func (s trunkSender) disassociate(ctx context.Context, a trunk.Action) error {
	err := s.change(ctx, "DisassociateTrunkInterface", string(a.Association), func(ctx context.Context, api API) error {
		_, err := api.DisassociateTrunkInterface(ctx, &ec2.DisassociateTrunkInterfaceInput{
			AssociationId: aws.String(string(a.Association)), ClientToken: aws.String(string(a.ID)),
		})
		return err
	})
	if Code(err) == "InvalidAssociationID.NotFound" {
		return nil
	}
	return err
}

// delete has EC2 deny a repetition if the first try has deleted the interface: the permission depends
// on its tag. Source: github.com/aws/karpenter-provider-aws/issues/2100.
func (s trunkSender) delete(ctx context.Context, a trunk.Action, again bool) error {
	err := s.change(ctx, "DeleteNetworkInterface", string(a.ENI), func(ctx context.Context, api API) error {
		_, err := api.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(string(a.ENI))})
		return err
	})
	if again && Code(err) == "UnauthorizedOperation" {
		if found, unread := s.x.filtered(ctx, filter("network-interface-id", string(a.ENI))); unread == nil && len(found) == 0 {
			return nil
		}
	}
	if IsNotFound(err) {
		return nil
	}
	return err
}

// isVLANInUse reports whether a branch of the trunk has the VLAN. Sources of the codes:
// pkg/aws/errors of AWS's VPC resource controller, and its pull request 698.
func isVLANInUse(err error) bool {
	return slices.Contains([]string{"InvalidVlanId.Duplicate", "DuplicateVlanID"}, Code(err))
}

// isGroupRefusal reports whether EC2 refused security groups: not known, of another VPC, or too
// many.
func isGroupRefusal(err error) bool {
	return slices.Contains([]string{
		"InvalidGroup.NotFound", "InvalidSecurityGroupID.NotFound", "InvalidGroupId.Malformed", "InvalidSecurityGroupId.Malformed",
		"SecurityGroupsPerInterfaceLimitExceeded",
	}, Code(err))
}

// TrunkFailure returns an error of Do as a failure for core/trunk. A try without a reply has an
// unknown outcome.
func TrunkFailure(err error) trunk.Failure {
	unsent := errors.Is(err, ErrFrozen) || errors.Is(err, cloud.ErrUnsupported)
	f := trunk.Failure{Reason: trunk.FailOther, Definite: !errors.Is(err, ErrOpen) && (unsent || !isAmbiguous(err)), Message: err.Error()}
	var e *Error
	errors.As(err, &e)
	switch {
	case IsSubnetExhausted(err):
		f.Reason = trunk.FailSubnet
	case Code(err) == "AttachmentLimitExceeded" && e.Action == "AssociateTrunkInterface":
		f.Reason = trunk.FailLimit
	case isVLANInUse(err):
		f.Reason = trunk.FailVLAN
	case isGroupRefusal(err):
		f.Reason = trunk.FailGroups
	case inUse(err) && e.Action == "AttachNetworkInterface":
		f.Reason = trunk.FailDevice
	case IsNotFound(err):
		f.Reason = trunk.FailNotFound
	case IsThrottled(err):
		f.Reason = trunk.FailThrottled
	}
	return f
}

// ErrUnlisted means that an instance has branches, and no associations were given.
var ErrUnlisted = errors.New("the associations of trunks were not listed")

// Branches describes the trunk and the branches of an instance: those that this controller made,
// and those of AWS's VPC resource controller, which have the same tags. Their associations are those of a
// listing; without one, the error is ErrUnlisted if there are branches. The observation is as old as the
// listing. An interface that cannot be read is left out and among the skipped ones.
//
// Those of known that are not among them are described by their ids, so that one exists for the caller also if
// another program has removed its tags. Without such a one that is no call.
func (t Trunks) Branches(ctx context.Context, id vpc.InstanceID, of Associations, known ...vpc.ENIID) (trunk.Observation, []Skipped, error) {
	o := trunk.Observation{At: time.Now()}
	found, err := t.filtered(ctx, filter("tag:"+vpc.TagInstanceID, string(id)), filter("tag:"+vpc.TagOwner, vpc.OwnerResourceController))
	if err != nil {
		return o, nil, err
	}
	untagged, err := t.untagged(ctx, found, known)
	if err != nil {
		return o, nil, err
	}
	found = append(found, untagged...)
	if slices.ContainsFunc(found, func(i Interface) bool { return i.Type == vpc.TypeBranch }) {
		if of.At.IsZero() {
			return o, nil, fmt.Errorf("branches of %s: %w", id, ErrUnlisted)
		}
		o.At = of.At
	}
	o.Complete = true
	var skipped []Skipped
	for _, i := range found {
		if i.ID == "" || len(i.Unreadable) > 0 || !slices.Contains([]vpc.InterfaceType{vpc.TypeTrunk, vpc.TypeBranch, vpc.TypeInterface}, i.Type) {
			skipped = append(skipped, Skipped{"interface " + string(i.ID), cmp.Or(joined(i.Unreadable), fmt.Sprintf("its type is %q", i.Type))})
			o.Complete = false // it exists, whatever it is
			continue
		}
		o.Interfaces = append(o.Interfaces, seen(i, id, of.by[i.ID]))
	}
	return o, skipped, nil
}

// untagged describes the interfaces of known that were not found by their tags.
func (t Trunks) untagged(ctx context.Context, found []Interface, known []vpc.ENIID) ([]Interface, error) {
	var ids []string
	for _, id := range known {
		if id != "" && !slices.ContainsFunc(found, func(i Interface) bool { return i.ID == id }) {
			ids = append(ids, string(id))
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	// A filter, not NetworkInterfaceIds: an id that does not exist there would be an error. A trunk and its
	// branches are at most 121, and a filter has up to 200 values.
	return t.filtered(ctx, filter("network-interface-id", ids...))
}

func joined(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf("cannot be read: %v", list)
}

func seen(i Interface, id vpc.InstanceID, is association) trunk.Seen {
	o := trunkOutcome(i)
	out := trunk.Seen{
		ENI: i.ID, Type: i.Type, Subnet: i.Subnet, MAC: o.MAC, IPv4: o.IPv4, IPv6: o.IPv6, Groups: o.Groups, Association: is.ID, VLAN: is.VLAN,
	}
	if i.Tags[vpc.TagManagedBy] == vpc.ManagedByController {
		out.Intent = cloud.ActionID(i.Tags[vpc.TagIntent])
	}
	if i.Type == vpc.TypeTrunk && i.On(id) {
		out.Device = i.device()
	}
	return out
}

// Host is what EC2 shows of an instance with a trunk, or to have one.
type Host struct {
	Subnet  Subnet // of its primary interface
	VPC     vpc.ID
	Groups  trunk.Groups // of its primary interface
	Devices []int        // device indexes in use on the default network card
}

// Host describes an instance and the subnet of its primary interface. It fails for an instance
// without one.
func (t Trunks) Host(ctx context.Context, id vpc.InstanceID) (Host, error) {
	on, err := t.Interfaces(ctx, id)
	if err != nil {
		return Host{}, err
	}
	var h Host
	found := false
	var primary Interface
	for _, i := range on {
		if i.primary(id) {
			primary, found = i, true
		}
		if i.card() == vpc.DefaultCard && i.Type != vpc.TypeTrunk {
			h.Devices = append(h.Devices, i.device())
		}
	}
	if !found {
		return Host{}, fmt.Errorf("describe instance %s: EC2 shows no primary interface of it", id)
	}
	h.VPC, h.Groups = primary.VPC, trunk.NewGroups(primary.Groups...)
	subnets, err := t.Subnets(ctx, primary.VPC, primary.Zone)
	if err != nil {
		return Host{}, err
	}
	of := slices.IndexFunc(subnets, func(n Subnet) bool { return n.ID == primary.Subnet })
	if of < 0 {
		return Host{}, fmt.Errorf("describe instance %s: EC2 does not show its subnet %s", id, primary.Subnet)
	}
	h.Subnet = subnets[of]
	return h, nil
}

// Exists reports whether EC2 shows an instance that is not terminated. stopped: it runs nothing until it is
// started again.
func (t Trunks) Exists(ctx context.Context, id vpc.InstanceID) (exists, stopped bool, _ error) {
	// A filter, not InstanceIds: an unknown id there would be an error.
	by := []types.Filter{filter("instance-id", string(id))}
	found, err := read(ctx, t.Executor, "DescribeInstances", describe(by), func(ctx context.Context, api API) (found []types.InstanceStateName, _ error) {
		reply, err := api.DescribeInstances(ctx, &ec2.DescribeInstancesInput{Filters: by})
		if err != nil {
			return nil, err
		}
		for _, r := range reply.Reservations {
			for _, i := range r.Instances {
				state := types.InstanceStateName("")
				if i.State != nil {
					state = i.State.Name
				}
				found = append(found, state)
			}
		}
		return found, nil
	})
	for _, state := range found { // one at most
		exists, stopped = state != types.InstanceStateNameTerminated, state == types.InstanceStateNameStopped
	}
	return exists, stopped, err
}

// Addresses returns the number of addresses that EC2 can give in an IPv4 subnet: five are reserved.
// Source: VPC user guide, "Subnet sizing".
func (n Subnet) Addresses() int {
	if !n.CIDR.IsValid() {
		return 0
	}
	return 1<<(netip.IPv4Unspecified().BitLen()-n.CIDR.Bits()) - 5
}
