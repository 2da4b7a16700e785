package ec2_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/ec2"
)

// actionOfKind is an action with all that one of any kind needs.
func actionOfKind(kind trunk.Kind) trunk.Action {
	return trunk.Action{
		ID: "act-1", Kind: kind, Instance: "i-1", ENI: "eni-1", Trunk: "eni-t", Subnet: "subnet-1", Groups: trunk.NewGroups("sg-1", "sg-2"), VLAN: 7,
		Association: "assoc-1", Device: 3, Began: time.Date(2026, 3, 1, 13, 0, 0, 0, time.FixedZone("CET", 3600)),
	}
}

// answered is EC2 that makes what it is asked for.
func answered() *answering {
	made, is := branchOf("eni-new", func(n *types.NetworkInterface) {
		n.Ipv6Addresses = []types.NetworkInterfaceIpv6Address{{Ipv6Address: aws.String("2001:db8::1")}}
	}), association("eni-1", "eni-t", 7)
	return &answering{created: &made, associated: &is}
}

// failing is EC2 that refuses actions.
func failing(errs map[string]error, shown ...types.NetworkInterface) *answering {
	a := answered()
	a.refused, a.interfaces = errs, shown
	return a
}

func TestEachActionIsTheCallThatItNames(t *testing.T) {
	tags := func(more string) string {
		return "TagSpecifications:[{ResourceType:network-interface,Tags:[" + more + "{Key:eks:eni:owner,Value:eks-vpc-resource-controller}," +
			"%s{Key:node.k8s.amazonaws.com/createdAt,Value:2026-03-01T12:00:00Z},{Key:node.k8s.amazonaws.com/instance_id,Value:i-1}," +
			"{Key:trunkline.dev/intent,Value:act-1},{Key:trunkline.dev/managed-by,Value:trunkline-controller}]}]}"
	}
	const cluster, owned = "{Key:cluster.k8s.amazonaws.com/name,Value:lab},", "{Key:kubernetes.io/cluster/lab,Value:owned},"
	const create = "CreateNetworkInterface {ClientToken:act-1,Description:aws-k8s-%s-eni,Groups:[sg-1,sg-2],"
	for name, c := range map[string]struct {
		kind    trunk.Kind
		cluster string
		want    []string
	}{
		"CreateTrunk":           {trunk.CreateTrunk, "lab", []string{fmt.Sprintf(create+"InterfaceType:trunk,SubnetId:subnet-1,"+tags(cluster), "trunk", owned)}},
		"CreateBranch":          {trunk.CreateBranch, "lab", []string{fmt.Sprintf(create+"SubnetId:subnet-1,"+tags(cluster), "branch", owned)}},
		"without the cluster's": {trunk.CreateBranch, "", []string{fmt.Sprintf(create+"SubnetId:subnet-1,"+tags(""), "branch", "")}},
		"AttachTrunk": {trunk.AttachTrunk, "lab", []string{
			"AttachNetworkInterface {DeviceIndex:3,InstanceId:i-1,NetworkInterfaceId:eni-1}",
			"ModifyNetworkInterfaceAttribute {Attachment:{AttachmentId:eni-attach-new,DeleteOnTermination:true},NetworkInterfaceId:eni-1}",
		}},
		"TagBranch": {trunk.TagBranch, "lab", []string{
			"CreateTags {Resources:[eni-1],Tags:[{Key:vpcresources.k8s.aws/trunk-eni-id,Value:eni-t},{Key:vpcresources.k8s.aws/vlan-id,Value:7}]}",
		}},
		"Associate":    {trunk.Associate, "lab", []string{"AssociateTrunkInterface {BranchInterfaceId:eni-1,ClientToken:act-1,TrunkInterfaceId:eni-t,VlanId:7}"}},
		"SetGroups":    {trunk.SetGroups, "lab", []string{"ModifyNetworkInterfaceAttribute {Groups:[sg-1,sg-2],NetworkInterfaceId:eni-1}"}},
		"Disassociate": {trunk.Disassociate, "lab", []string{"DisassociateTrunkInterface {AssociationId:assoc-1,ClientToken:act-1}"}},
		"DeleteBranch": {trunk.DeleteBranch, "lab", []string{"DeleteNetworkInterface {NetworkInterfaceId:eni-1}"}},
		"DeleteTrunk":  {trunk.DeleteTrunk, "lab", []string{"DeleteNetworkInterface {NetworkInterfaceId:eni-1}"}},
	} {
		a := answered()
		x := trunksOn(t, a)
		x.Cluster = c.cluster
		out, err := x.Do(t.Context(), actionOfKind(c.kind), false)
		if diff := cmp.Diff(c.want, a.asked); diff != "" || err != nil {
			t.Errorf("%s: %v; requests (-want +got):\n%s", name, err, diff)
		}
		want := trunk.Outcome{}
		switch c.kind { //nolint:exhaustive // the others have no outcome
		case trunk.CreateTrunk, trunk.CreateBranch:
			want = madeOutcome("eni-new")
		case trunk.Associate:
			want.Association = "assoc-of-eni-1"
		}
		if diff := cmp.Diff(want, out, sameAddresses()); diff != "" {
			t.Errorf("%s: outcome (-want +got):\n%s", name, diff)
		}
	}
}

// madeOutcome is the outcome of an action that made answered's interface.
func madeOutcome(id vpc.ENIID) trunk.Outcome {
	return trunk.Outcome{
		ENI: id, MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, IPv4: ranges("10.0.0.5/32")[0].Addr(), IPv6: ranges("2001:db8::1/128")[0].Addr(), Groups: trunk.NewGroups("sg-1", "sg-2"),
	}
}

func TestWhatIsNoCallToEC2IsNotSent(t *testing.T) {
	for _, kind := range []trunk.Kind{trunk.Bind, trunk.Release, trunk.Adopt, "Another"} {
		a := answered()
		out, err := trunksOn(t, a).Do(t.Context(), actionOfKind(kind), false)
		if !errors.Is(err, cloud.ErrUnsupported) || !strings.HasPrefix(err.Error(), actionOfKind(kind).String()+": it is no call to EC2") || len(a.asked) != 0 || out.ENI != "" {
			t.Errorf("%s: %+v, %v, asked %q", kind, out, err, a.asked)
		}
		if f := ec2.TrunkFailure(err); !f.Definite || f.Reason != trunk.FailOther {
			t.Errorf("%s: %+v", kind, f)
		}
	}
}

func TestABrakeStopsWhatItDoesNotAllow(t *testing.T) {
	makes := []trunk.Kind{trunk.CreateTrunk, trunk.AttachTrunk, trunk.CreateBranch, trunk.TagBranch, trunk.Associate, trunk.SetGroups}
	frees := []trunk.Kind{trunk.Disassociate, trunk.DeleteBranch, trunk.DeleteTrunk}
	for _, c := range []struct {
		brake          cloud.Brake
		allowed, stops []trunk.Kind
	}{
		{cloud.BrakeOff, slices.Concat(makes, frees), nil},
		{cloud.FreezeRelease, makes, frees},
		{cloud.FreezeAll, nil, slices.Concat(makes, frees)},
	} {
		x := trunksOn(t, answered())
		x.SetBrake(c.brake, "for a test")
		for _, kind := range c.allowed {
			if _, err := x.Do(t.Context(), actionOfKind(kind), false); err != nil {
				t.Errorf("brake %s: %s: %v", c.brake, kind, err)
			}
		}
		for _, kind := range c.stops {
			a := actionOfKind(kind)
			_, err := x.Do(t.Context(), a, false)
			if !errors.Is(err, ec2.ErrFrozen) || !strings.HasPrefix(err.Error(), a.String()) || !strings.Contains(err.Error(), "for a test") || !ec2.TrunkFailure(err).Definite {
				t.Errorf("brake %s: %s: %v", c.brake, kind, err)
			}
		}
	}
}

// A client token that EC2 may have forgotten would make a second interface.
func TestAnInterfaceOfAnEarlierTryIsSearchedForOnceItsTokenMayBeForgotten(t *testing.T) {
	made := branchOf("eni-earlier", func(n *types.NetworkInterface) {
		n.Ipv6Addresses = []types.NetworkInterfaceIpv6Address{{Ipv6Address: aws.String("2001:db8::1")}}
	})
	const search, create = "DescribeNetworkInterfaces", "CreateNetworkInterface"
	for name, c := range map[string]struct {
		ago   time.Duration
		again bool
		shown []types.NetworkInterface
		err   error // of the search
		calls string
		made  vpc.ENIID
	}{
		"the first try, late":              {2 * time.Hour, false, []types.NetworkInterface{made}, nil, create, "eni-new"},
		"again within the hour":            {time.Hour, true, []types.NetworkInterface{made}, nil, create, "eni-new"},
		"again, and it was made":           {time.Hour + time.Second, true, []types.NetworkInterface{made, branchOf("eni-other", func(*types.NetworkInterface) {})}, nil, search, "eni-earlier"},
		"again, and it was not made":       {time.Hour + time.Second, true, nil, nil, search + " " + create, "eni-new"},
		"again, and EC2 cannot be asked":   {2 * time.Hour, true, nil, errCut, search, ""},
		"again, and the search is refused": {2 * time.Hour, true, nil, refusing("UnauthorizedOperation"), search, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := failing(map[string]error{search: c.err}, c.shown...)
			action := actionOfKind(trunk.CreateBranch)
			action.Began = time.Now()
			time.Sleep(c.ago)
			out, err := trunksOn(t, a).Do(t.Context(), action, c.again)
			if a.calls() != c.calls || !errors.Is(err, c.err) || out.ENI != c.made {
				t.Errorf("%s: %s: %+v, %v; want %s: %s", name, a.calls(), out, err, c.calls, c.made)
			}
			if c.err != nil && (!errors.Is(err, ec2.ErrOpen) || ec2.TrunkFailure(err).Definite) {
				t.Errorf("%s: %v is not open", name, err)
			}
			if c.made != "" {
				if diff := cmp.Diff(madeOutcome(c.made), out, sameAddresses()); diff != "" {
					t.Errorf("%s: outcome (-want +got):\n%s", name, diff)
				}
			}
			if asked := a.requests(search); len(asked) == 1 && asked[0] != "{Filters:[{Name:tag:"+vpc.TagIntent+",Values:[act-1]}],MaxResults:1000}" {
				t.Errorf("%s: searched by %s", name, asked[0])
			}
		})
	}
}

// An earlier version of the controller made the interface with other tags.
func TestAClientTokenOfAnotherRequestIsTheInterfaceWithItsTag(t *testing.T) {
	mismatch := refusing("IdempotentParameterMismatch")
	for name, c := range map[string]struct {
		shown  []types.NetworkInterface
		search error
		want   vpc.ENIID
	}{
		"shown":                 {[]types.NetworkInterface{branchOf("eni-earlier", func(*types.NetworkInterface) {})}, nil, "eni-earlier"},
		"not shown":             {nil, nil, ""},
		"the search is refused": {nil, refusing("UnauthorizedOperation"), ""},
	} {
		a := failing(map[string]error{"CreateNetworkInterface": mismatch, "DescribeNetworkInterfaces": c.search}, c.shown...)
		out, err := trunksOn(t, a).Do(t.Context(), actionOfKind(trunk.CreateBranch), false)
		if out.ENI != c.want || (err == nil) != (c.want != "") || a.calls() != "CreateNetworkInterface DescribeNetworkInterfaces" {
			t.Errorf("%s: %+v, %v by %s", name, out, err, a.calls())
		}
		if cause := c.search; err != nil {
			if cause == nil {
				cause = mismatch
			}
			if !errors.Is(err, ec2.ErrOpen) || !errors.Is(err, cause) {
				t.Errorf("%s: %v, want that it is open because of %v", name, err, cause)
			}
		}
	}
}

func TestAnInterfaceThatEC2RefusesToMakeIsNoOutcome(t *testing.T) {
	for _, code := range []string{"InsufficientFreeAddressesInSubnet", "InvalidGroup.NotFound"} {
		a := failing(map[string]error{"CreateNetworkInterface": refusing(code)}, branchOf("eni-1", func(*types.NetworkInterface) {}))
		out, err := trunksOn(t, a).Do(t.Context(), actionOfKind(trunk.CreateTrunk), false)
		if err == nil || err.Error() != "EC2 CreateNetworkInterface subnet-1: "+code+": m" || out.ENI != "" || a.calls() != "CreateNetworkInterface" {
			t.Errorf("%+v, %v by %s", out, err, a.calls())
		}
	}
}

func TestAnAttachmentOfAnEarlierTryIsCompleted(t *testing.T) {
	const search, attach, complete = "DescribeNetworkInterfaces", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute"
	as := func(change func(*types.NetworkInterfaceAttachment)) []types.NetworkInterface {
		return []types.NetworkInterface{trunkOf("eni-1", 3, func(n *types.NetworkInterface) { change(n.Attachment) })}
	}
	incomplete := as(func(*types.NetworkInterfaceAttachment) {})
	whole := as(func(a *types.NetworkInterfaceAttachment) { a.DeleteOnTermination = aws.Bool(true) })
	elsewhere := as(func(a *types.NetworkInterfaceAttachment) { a.InstanceId = aws.String("i-2") })
	inUse, denied := refusing("InvalidNetworkInterface.InUse"), refusing("UnauthorizedOperation")
	for name, c := range map[string]struct {
		again   bool
		shown   []types.NetworkInterface
		refused map[string]error
		calls   string
		err     error
		open    bool
	}{
		"the first try":                                 {false, whole, nil, attach + " " + complete, nil, false},
		"again, and it is whole":                        {true, whole, nil, search, nil, false},
		"again, and it is attached":                     {true, incomplete, nil, search + " " + complete, nil, false},
		"again, and it is on another instance":          {true, elsewhere, nil, search + " " + attach + " " + complete, nil, false},
		"again, and it is not shown":                    {true, nil, nil, search + " " + attach + " " + complete, nil, false},
		"again, and EC2 does not know it":               {true, nil, map[string]error{search: refusing("InvalidNetworkInterfaceID.NotFound")}, search + " " + attach + " " + complete, nil, false},
		"again, and the search is refused":              {true, whole, map[string]error{search: denied}, search, denied, true},
		"refused, because it is whole":                  {false, whole, map[string]error{attach: inUse}, attach + " " + search, nil, false},
		"refused, because it is attached":               {false, incomplete, map[string]error{attach: inUse}, attach + " " + search + " " + complete, nil, false},
		"refused, because it is on another instance":    {false, elsewhere, map[string]error{attach: inUse}, attach + " " + search, inUse, false},
		"refused, because the device is in use":         {false, nil, map[string]error{attach: refusing("InvalidParameterValue")}, attach + " " + search, refusing("InvalidParameterValue"), false},
		"refused, and the search is refused too":        {false, whole, map[string]error{attach: inUse, search: denied}, attach + " " + search, denied, true},
		"refused for another reason":                    {false, whole, map[string]error{attach: denied}, attach, denied, false},
		"attached, and the second call is refused":      {false, nil, map[string]error{complete: denied}, attach + " " + complete, denied, true},
		"found attached, and its completion is refused": {true, incomplete, map[string]error{complete: denied}, search + " " + complete, denied, true},
	} {
		a := failing(c.refused, c.shown...)
		_, err := trunksOn(t, a).Do(t.Context(), actionOfKind(trunk.AttachTrunk), c.again)
		if a.calls() != c.calls || (err == nil) != (c.err == nil) || err != nil && ec2.Code(err) != ec2.Code(c.err) || errors.Is(err, ec2.ErrOpen) != c.open {
			t.Errorf("%s: %v by %s; want %v by %s, open %v", name, err, a.calls(), c.err, c.calls, c.open)
		}
		if asked := a.requests(complete); strings.HasPrefix(c.calls, search) && len(c.shown) == 1 && !slices.Contains(strings.Fields(c.calls), attach) && len(asked) == 1 && !strings.Contains(asked[0], "AttachmentId:a,") {
			t.Errorf("%s: completed by %s, want the attachment that EC2 shows", name, asked[0])
		}
		if strings.HasSuffix(c.calls, complete) && err != nil && !strings.Contains(err.Error(), "it is attached, and stays when its instance is terminated") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnAssociationOfAnEarlierTryIsFoundByItsBranch(t *testing.T) {
	const associate, list = "AssociateTrunkInterface", "DescribeTrunkInterfaceAssociations"
	same := association("eni-1", "eni-t", 7)
	unnamed := same
	unnamed.AssociationId = nil
	for name, c := range map[string]struct {
		code  string
		shown []types.TrunkInterfaceAssociation
		calls string
		found bool
	}{
		"the VLAN is that of this branch":         {"InvalidVlanId.Duplicate", []types.TrunkInterfaceAssociation{association("eni-2", "eni-t", 8), same}, associate + " " + list, true},
		"the same by the other code":              {"DuplicateVlanID", []types.TrunkInterfaceAssociation{same}, associate + " " + list, true},
		"the branch is in use by this trunk":      {"InvalidNetworkInterface.InUse", []types.TrunkInterfaceAssociation{same}, associate + " " + list, true},
		"the token is of another request":         {"IdempotentParameterMismatch", []types.TrunkInterfaceAssociation{same}, associate + " " + list, true},
		"the VLAN is that of another branch":      {"InvalidVlanId.Duplicate", []types.TrunkInterfaceAssociation{association("eni-2", "eni-t", 7)}, associate + " " + list, false},
		"the branch has another VLAN":             {"InvalidVlanId.Duplicate", []types.TrunkInterfaceAssociation{association("eni-1", "eni-t", 8)}, associate + " " + list, false},
		"the branch is of another trunk":          {"InvalidNetworkInterface.InUse", []types.TrunkInterfaceAssociation{association("eni-1", "eni-u", 7)}, associate + " " + list, false},
		"EC2 describes it without an id":          {"InvalidVlanId.Duplicate", []types.TrunkInterfaceAssociation{unnamed}, associate + " " + list, false},
		"EC2 shows none":                          {"IdempotentParameterMismatch", nil, associate + " " + list, false},
		"EC2 refuses it for a reason of its own":  {"AttachmentLimitExceeded", []types.TrunkInterfaceAssociation{same}, associate, false},
		"the branch does not exist, or not shown": {"InvalidNetworkInterfaceID.NotFound", []types.TrunkInterfaceAssociation{same}, associate, false},
	} {
		a := failing(map[string]error{associate: refusing(c.code)})
		a.associations = c.shown
		out, err := trunksOn(t, a).Do(t.Context(), actionOfKind(trunk.Associate), false)
		if a.calls() != c.calls || (err == nil) != c.found || (out.Association == "assoc-of-eni-1") != c.found || !c.found && ec2.Code(err) != c.code || errors.Is(err, ec2.ErrOpen) {
			t.Errorf("%s: %+v, %v by %s", name, out, err, a.calls())
		}
	}
	lost := refusing("UnauthorizedOperation")
	a := failing(map[string]error{associate: refusing("DuplicateVlanID"), list: lost})
	if out, err := trunksOn(t, a).Do(t.Context(), actionOfKind(trunk.Associate), false); !errors.Is(err, ec2.ErrOpen) || !errors.Is(err, lost) || out.Association != "" {
		t.Errorf("without a listing: %+v, %v", out, err)
	}
}

func TestAReplyWithoutAnAssociationIsOpen(t *testing.T) {
	unnamed := association("eni-1", "eni-t", 7)
	unnamed.AssociationId = aws.String("")
	for name, reply := range map[string]*types.TrunkInterfaceAssociation{"none": nil, "one without an id": &unnamed} {
		a := answered()
		a.associated = reply
		_, err := trunksOn(t, a).Do(t.Context(), actionOfKind(trunk.Associate), false)
		if want := "EC2 AssociateTrunkInterface eni-1: no reply: the reply holds no association"; !errors.Is(err, ec2.ErrOpen) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

func TestWhatIsGoneNeedsNoCall(t *testing.T) {
	gone := refusing("InvalidNetworkInterfaceID.NotFound")
	denied := refusing("UnauthorizedOperation")
	shown := branchOf("eni-1", func(*types.NetworkInterface) {})
	other := branchOf("eni-2", func(*types.NetworkInterface) {})
	const remove, search = "DeleteNetworkInterface", "DescribeNetworkInterfaces"
	for name, c := range map[string]struct {
		kind    trunk.Kind
		again   bool
		refused map[string]error
		shown   []types.NetworkInterface
		calls   string
		want    error
	}{
		"a branch that does not exist":            {trunk.DeleteBranch, false, map[string]error{remove: gone}, nil, remove, nil},
		"a trunk that does not exist":             {trunk.DeleteTrunk, true, map[string]error{remove: gone}, nil, remove, nil},
		"a branch that is in use":                 {trunk.DeleteBranch, true, map[string]error{remove: refusing("InvalidNetworkInterface.InUse")}, nil, remove, refusing("InvalidNetworkInterface.InUse")},
		"denied the first time":                   {trunk.DeleteBranch, false, map[string]error{remove: denied}, nil, remove, denied},
		"denied again, and it is gone":            {trunk.DeleteBranch, true, map[string]error{remove: denied}, []types.NetworkInterface{other}, remove + " " + search, nil},
		"denied again, and it is there":           {trunk.DeleteBranch, true, map[string]error{remove: denied}, []types.NetworkInterface{shown}, remove + " " + search, denied},
		"denied again, and it cannot be read":     {trunk.DeleteBranch, true, map[string]error{remove: denied, search: errCut}, nil, remove + " " + search, denied},
		"an association that does not exist":      {trunk.Disassociate, false, map[string]error{"DisassociateTrunkInterface": refusing("InvalidAssociationID.NotFound")}, nil, "DisassociateTrunkInterface", nil},
		"a disassociation that is denied":         {trunk.Disassociate, true, map[string]error{"DisassociateTrunkInterface": denied}, nil, "DisassociateTrunkInterface", denied},
		"groups of a branch that does not exist":  {trunk.SetGroups, true, map[string]error{"ModifyNetworkInterfaceAttribute": gone}, nil, "ModifyNetworkInterfaceAttribute", gone},
		"tags of a branch that does not exist":    {trunk.TagBranch, true, map[string]error{"CreateTags": gone}, nil, "CreateTags", gone},
		"a disassociation of another that is not": {trunk.Disassociate, true, map[string]error{"DisassociateTrunkInterface": gone}, nil, "DisassociateTrunkInterface", gone},
	} {
		a := failing(c.refused, c.shown...)
		_, err := trunksOn(t, a).Do(t.Context(), actionOfKind(c.kind), c.again)
		if a.calls() != c.calls || (err == nil) != (c.want == nil) || c.want != nil && ec2.Code(err) != ec2.Code(c.want) {
			t.Errorf("%s: %v by %s; want %v by %s", name, err, a.calls(), c.want, c.calls)
		}
		if asked := a.requests(search); len(asked) == 1 && asked[0] != "{Filters:[{Name:network-interface-id,Values:[eni-1]}],MaxResults:1000}" {
			t.Errorf("%s: searched by %s", name, asked[0])
		}
	}
}

func TestErrorsNameTheCallAndItsObject(t *testing.T) {
	for kind, want := range map[trunk.Kind]string{
		trunk.CreateTrunk: "CreateNetworkInterface subnet-1", trunk.CreateBranch: "CreateNetworkInterface subnet-1", trunk.AttachTrunk: "AttachNetworkInterface eni-1",
		trunk.TagBranch: "CreateTags eni-1", trunk.Associate: "AssociateTrunkInterface eni-1", trunk.SetGroups: "ModifyNetworkInterfaceAttribute eni-1",
		trunk.Disassociate: "DisassociateTrunkInterface assoc-1", trunk.DeleteBranch: "DeleteNetworkInterface eni-1", trunk.DeleteTrunk: "DeleteNetworkInterface eni-1",
	} {
		call, _, _ := strings.Cut(want, " ")
		out, err := trunksOn(t, failing(map[string]error{call: refusing("Oops")})).Do(t.Context(), actionOfKind(kind), false)
		if err == nil || err.Error() != "EC2 "+want+": Oops: m" || out.ENI != "" || out.Association != "" {
			t.Errorf("%s: %+v, %v; want %s", kind, out, err, want)
		}
	}
}

func TestTheReasonOfAFailureIsOfItsCodeAndItsCall(t *testing.T) {
	of := func(action, code string) error { return &ec2.Error{Action: action, Code: code, Err: io.EOF} }
	for want, errs := range map[trunk.Reason][]error{
		trunk.FailSubnet: {of("A", "InsufficientFreeAddressesInSubnet"), of("A", "InsufficientCidrBlocks")},
		trunk.FailLimit:  {of("AssociateTrunkInterface", "AttachmentLimitExceeded")},
		trunk.FailVLAN:   {of("A", "InvalidVlanId.Duplicate"), of("A", "DuplicateVlanID")},
		trunk.FailGroups: {
			of("A", "InvalidGroup.NotFound"), of("A", "InvalidSecurityGroupID.NotFound"), of("A", "InvalidGroupId.Malformed"),
			of("A", "InvalidSecurityGroupId.Malformed"), of("A", "SecurityGroupsPerInterfaceLimitExceeded"),
		},
		trunk.FailDevice:    {of("AttachNetworkInterface", "InvalidParameterValue"), of("AttachNetworkInterface", "InvalidNetworkInterface.InUse")},
		trunk.FailNotFound:  {of("A", "InvalidNetworkInterfaceID.NotFound"), of("A", "InvalidSubnetID.NotFound")},
		trunk.FailThrottled: {of("A", "RequestLimitExceeded"), of("A", "Throttling")},
		trunk.FailOther: {
			of("AttachNetworkInterface", "AttachmentLimitExceeded"), of("DeleteNetworkInterface", "InvalidParameterValue"), of("A", "UnauthorizedOperation"),
			fmt.Errorf("tag: %w", ec2.ErrFrozen), fmt.Errorf("bind: %w", cloud.ErrUnsupported),
		},
	} {
		for _, err := range errs {
			for open, err := range map[bool]error{false: err, true: fmt.Errorf("%w: %w", ec2.ErrOpen, err)} {
				if f := ec2.TrunkFailure(err); f.Reason != want || f.Definite == open || f.Message != err.Error() {
					t.Errorf("%v: %+v, want %q, definite %v", err, f, want, !open)
				}
			}
		}
	}
	for _, err := range []error{of("A", ""), of("A", "InternalError"), io.EOF} {
		if f := ec2.TrunkFailure(err); f.Definite || f.Reason != trunk.FailOther {
			t.Errorf("%v: %+v, want an unknown outcome", err, f)
		}
	}
}

func TestTheProbeNamesOnlyRefusalsOfTheAccountOrTheRole(t *testing.T) {
	const associate = "AssociateTrunkInterface"
	for code, want := range map[string]struct{ refusal, err bool }{
		"DryRunOperation": {false, false}, "InvalidNetworkInterfaceID.NotFound": {false, false},
		"OperationNotPermitted": {true, false}, "UnauthorizedOperation": {true, false},
		"RequestLimitExceeded": {false, true},
	} {
		a := failing(map[string]error{associate: refusing(code)})
		refusal, err := trunksOn(t, a).Probe(t.Context())
		if (refusal != "") != want.refusal || (err != nil) != want.err || want.refusal && refusal != "EC2 AssociateTrunkInterface dry run: "+code+": m" {
			t.Errorf("%s: %q, %v", code, refusal, err)
		}
		if want := []string{"{BranchInterfaceId:eni-00000000000000000,DryRun:true,TrunkInterfaceId:eni-00000000000000000,VlanId:1}"}; !slices.Equal(a.requests(associate), want) {
			t.Errorf("requests %q, want %q", a.requests(associate), want)
		}
	}
	if refusal, err := trunksOn(t, answered()).Probe(t.Context()); refusal != "" || err != nil {
		t.Errorf("not refused: %q, %v", refusal, err)
	}
}

// during is EC2 that calls a function while it carries out CreateTags.
type during struct {
	*answering
	call func()
}

func (d during) CreateTags(context.Context, *sdk.CreateTagsInput, ...func(*sdk.Options)) (*sdk.CreateTagsOutput, error) {
	d.call()
	return &sdk.CreateTagsOutput{}, nil
}

func TestAnActionIsCountedAsOpenDuringItsCall(t *testing.T) {
	registry := prometheus.NewRegistry()
	open := func() float64 { return metric(t, registry, "trunkline_ec2_intents_open", "") }
	within := -1.0
	api := during{answered(), func() { within = open() }}
	x, err := ec2.NewExecutor(ec2.Options{Clients: ec2.Clients{Kept: api}, Log: slog.New(slog.DiscardHandler), Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (ec2.Trunks{Executor: x}).Do(t.Context(), actionOfKind(trunk.TagBranch), false); err != nil || within != 1 || open() != 0 {
		t.Errorf("%v; %v actions are open during the call, %v after it", err, within, open())
	}
}
