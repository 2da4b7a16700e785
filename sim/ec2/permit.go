package ec2

import (
	"fmt"
	"maps"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// keys are the condition keys of a request for one resource, in lower case as sim/iam
// compares them.
type keys map[string][]string

// arn returns the ARN of a resource of the call's account.
func arn(c *query.Call, kind cloud.Kind, id string) string {
	return ARN(c.State, kind, id)
}

// ARN returns the ARN of a resource of the account.
func ARN(s *cloud.State, kind cloud.Kind, id string) string {
	return fmt.Sprintf("arn:%s:ec2:%s:%s:%s/%s", cloud.PartitionOf(s.Region).Name, s.Region, s.Account, kind, id)
}

// requestKeys returns the condition keys of every request.
func requestKeys(c *query.Call) keys {
	k := keys(c.Principal.Keys())
	k["aws:requestedregion"], k["ec2:region"] = []string{c.State.Region}, []string{c.State.Region}
	return k
}

// ask makes the IAM request for the call's action on a resource.
func ask(c *query.Call, kind cloud.Kind, id string, extra ...keys) iam.Request {
	r := iam.Request{Action: "ec2:" + c.Action, Resource: arn(c, kind, id), Keys: requestKeys(c)}
	for _, e := range extra {
		maps.Copy(r.Keys, e)
	}
	return r
}

// onAnyResource permits actions that take no resource: the describes.
func onAnyResource[Req any](c *query.Call, _ *Req) ([]iam.Request, error) {
	return []iam.Request{{Action: "ec2:" + c.Action, Resource: "*", Keys: requestKeys(c)}}, nil
}

// tagged returns the condition keys of a resource's tags.
func tagged(tags cloud.Tags) keys {
	k := keys{}
	for name, v := range tags {
		k["aws:resourcetag/"+name] = []string{v}
		k["ec2:resourcetag/"+name] = []string{v}
	}
	return k
}

// tagging returns the condition keys of the tags in a request.
func tagging(tags cloud.Tags) keys {
	k := keys{}
	for name, v := range tags {
		k["aws:requesttag/"+name] = []string{v}
		k["aws:tagkeys"] = append(k["aws:tagkeys"], name)
	}
	return k
}

// inSubnet returns the condition keys of a resource in a subnet.
func inSubnet(c *query.Call, id vpc.SubnetID) keys {
	n := c.State.Subnets[id]
	if n == nil {
		return keys{}
	}
	return keys{
		"ec2:vpc":              {arn(c, cloud.KindVPC, string(c.State.VPC.ID))},
		"ec2:subnet":           {arn(c, cloud.KindSubnet, string(id))},
		"ec2:availabilityzone": {n.Zone},
	}
}

// authorization collects the IAM requests of a call, one for each resource it names.
// A resource that does not exist is included, without tags: a caller with a grant
// that depends on a tag is refused, and only a caller that may access all resources
// of the kind receives the NotFound error. Source:
// github.com/aws/karpenter-provider-aws/issues/2100 and
// github.com/runs-on/terraform-aws-runs-on/issues/60, on instances.
type authorization struct {
	call      *query.Call
	list      []iam.Request
	err       error // the first
	malformed bool
}

// result is the return value of an action's Permit. A call with a malformed id makes
// no IAM request.
func (q *authorization) result() ([]iam.Request, error) {
	if q.malformed {
		return nil, q.err
	}
	return q.list, q.err
}

// wellFormed reports whether an id has the form of the kind.
func (q *authorization) wellFormed(kind cloud.Kind, id string) bool {
	err := kind.CheckID(id)
	if err != nil && !q.malformed {
		q.malformed, q.err = true, err
	}
	return err == nil
}

func (q *authorization) require(kind cloud.Kind, id string, extra ...keys) {
	q.list = append(q.list, ask(q.call, kind, id, extra...))
}

// missing adds a resource that does not exist.
func (q *authorization) missing(kind cloud.Kind, id string, extra ...keys) {
	q.require(kind, id, extra...)
	if q.err == nil {
		q.err = kind.NotFound(id)
	}
}

func (q *authorization) eni(id string, extra ...keys) {
	if !q.wellFormed(cloud.KindInterface, id) {
		return
	}
	i := q.call.State.Interfaces[vpc.ENIID(id)]
	if i == nil {
		q.missing(cloud.KindInterface, id)
		return
	}
	own := []keys{tagged(i.Tags), inSubnet(q.call, i.Subnet), {"ec2:networkinterfaceid": {id}}}
	q.require(cloud.KindInterface, id, append(own, extra...)...)
}

func (q *authorization) instance(id string) {
	if !q.wellFormed(cloud.KindInstance, id) {
		return
	}
	n := q.call.State.Instances[vpc.InstanceID(id)]
	if n == nil {
		q.missing(cloud.KindInstance, id)
		return
	}
	q.require(cloud.KindInstance, id, tagged(n.Tags), inSubnet(q.call, n.Subnet),
		keys{"ec2:instanceid": {id}, "ec2:instancetype": {n.Type}})
}

func (q *authorization) group(id string) { q.groupOr(id, cloud.KindGroup.NotFound(id)) }

// groupOr adds a group; unknown is the call's error if it does not exist.
func (q *authorization) groupOr(id string, unknown error) {
	if !q.wellFormed(cloud.KindGroup, id) {
		return
	}
	g := q.call.State.Groups[vpc.SecurityGroupID(id)]
	if g == nil {
		q.require(cloud.KindGroup, id)
		if q.err == nil {
			q.err = unknown
		}
		return
	}
	q.require(cloud.KindGroup, id, tagged(g.Tags), ofVPC(q.call), keys{"ec2:securitygroupid": {id}})
}

func (q *authorization) subnet(id string) {
	if !q.wellFormed(cloud.KindSubnet, id) {
		return
	}
	n := q.call.State.Subnets[vpc.SubnetID(id)]
	if n == nil {
		q.missing(cloud.KindSubnet, id)
		return
	}
	q.require(cloud.KindSubnet, id, inSubnet(q.call, n.ID), tagged(n.Tags))
}

func (q *authorization) table(id string) {
	if !q.wellFormed(cloud.KindTable, id) {
		return
	}
	t := q.call.State.RouteTables[vpc.RouteTableID(id)]
	if t == nil {
		q.missing(cloud.KindTable, id)
		return
	}
	q.require(cloud.KindTable, id, tagged(t.Tags), ofVPC(q.call))
}

func (q *authorization) vpc(id string) {
	if !q.wellFormed(cloud.KindVPC, id) {
		return
	}
	if string(q.call.State.VPC.ID) != id {
		q.missing(cloud.KindVPC, id)
		return
	}
	q.require(cloud.KindVPC, id, tagged(q.call.State.VPC.Tags), keys{"ec2:vpcid": {id}})
}

func (q *authorization) address(id string) {
	if !q.wellFormed(cloud.KindAddress, id) {
		return
	}
	a := q.call.State.Addresses[cloud.AllocationID(id)]
	if a == nil {
		q.missing(cloud.KindAddress, id)
		return
	}
	q.require(cloud.KindAddress, id, tagged(a.Tags))
}

// createTags adds the permission that a request needs which tags what it creates.
func (q *authorization) createTags(kind cloud.Kind, tags cloud.Tags, extra ...keys) {
	if len(tags) == 0 {
		return
	}
	create := ask(q.call, kind, "*", append(extra, tagging(tags), keys{"ec2:createaction": {q.call.Action}})...)
	create.Action = "ec2:CreateTags"
	q.list = append(q.list, create)
}

// ofVPC returns the condition key of a resource that is in the VPC and in no subnet.
func ofVPC(c *query.Call) keys {
	return keys{"ec2:vpc": {arn(c, cloud.KindVPC, string(c.State.VPC.ID))}}
}
