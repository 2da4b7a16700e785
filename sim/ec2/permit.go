package ec2

import (
	"fmt"
	"maps"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// keys are the condition keys of a request about one resource, lower case as
// sim/iam compares them.
type keys map[string][]string

// arn names a resource of the account.
func arn(c *query.Call, kind cloud.Kind, id string) string {
	return fmt.Sprintf("arn:aws:ec2:%s:%s:%s/%s", c.State.Region, c.State.Account, kind, id)
}

// requestKeys are those every request has.
func requestKeys(c *query.Call) keys {
	k := keys{
		"aws:requestedregion": {c.State.Region}, "ec2:region": {c.State.Region},
		"aws:principalarn": {c.Principal.ARN}, "aws:principalaccount": {c.Principal.Account},
	}
	if c.Principal.Instance != "" {
		k["ec2:sourceinstancearn"] = []string{c.Principal.Instance}
	}
	return k
}

// ask is the question whether the caller may do the call's action to a resource.
func ask(c *query.Call, kind cloud.Kind, id string, extra ...keys) iam.Request {
	r := iam.Request{Action: "ec2:" + c.Action, Resource: arn(c, kind, id), Keys: requestKeys(c)}
	for _, e := range extra {
		maps.Copy(r.Keys, e)
	}
	return r
}

// anywhere permits actions that take no resource: all that describe.
func anywhere[Req any](c *query.Call, _ *Req) ([]iam.Request, error) {
	return []iam.Request{{Action: "ec2:" + c.Action, Resource: "*", Keys: requestKeys(c)}}, nil
}

// tagged are the keys of a resource's tags.
func tagged(tags cloud.Tags) keys {
	k := keys{}
	for name, v := range tags {
		k["aws:resourcetag/"+name] = []string{v}
		k["ec2:resourcetag/"+name] = []string{v}
	}
	return k
}

// tagging are the keys of the tags a request brings.
func tagging(tags cloud.Tags) keys {
	k := keys{}
	for name, v := range tags {
		k["aws:requesttag/"+name] = []string{v}
		k["aws:tagkeys"] = append(k["aws:tagkeys"], name)
	}
	return k
}

// inSubnet are the keys of what lies in a subnet.
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

// questions gather what a call asks of IAM about the resources it names. One that
// does not exist is asked about all the same, and has no tags: a caller whose grant
// hangs on a tag is refused, and only others are told that it is not there.
// Source: github.com/aws/karpenter-provider-aws/issues/2100 and
// github.com/runs-on/terraform-aws-runs-on/issues/60, of instances.
type questions struct {
	call      *query.Call
	list      []iam.Request
	err       error // the first
	malformed bool
}

// answer is what an action's Permit returns. A call with an id that cannot be one
// asks nothing.
func (q *questions) answer() ([]iam.Request, error) {
	if q.malformed {
		return nil, q.err
	}
	return q.list, q.err
}

// could reports whether an id could be one of the kind.
func (q *questions) could(kind cloud.Kind, id string) bool {
	err := kind.CheckID(id)
	if err != nil && !q.malformed {
		q.malformed, q.err = true, err
	}
	return err == nil
}

func (q *questions) about(kind cloud.Kind, id string, extra ...keys) {
	q.list = append(q.list, ask(q.call, kind, id, extra...))
}

// missing asks about a resource that is not there.
func (q *questions) missing(kind cloud.Kind, id string, extra ...keys) {
	q.about(kind, id, extra...)
	if q.err == nil {
		q.err = kind.NotFound(id)
	}
}

func (q *questions) eni(id string) {
	if !q.could(cloud.KindInterface, id) {
		return
	}
	i := q.call.State.Interfaces[vpc.ENIID(id)]
	if i == nil {
		q.missing(cloud.KindInterface, id)
		return
	}
	q.about(cloud.KindInterface, id, tagged(i.Tags), inSubnet(q.call, i.Subnet), keys{"ec2:networkinterfaceid": {id}})
}

func (q *questions) instance(id string) {
	if !q.could(cloud.KindInstance, id) {
		return
	}
	n := q.call.State.Instances[vpc.InstanceID(id)]
	if n == nil {
		q.missing(cloud.KindInstance, id)
		return
	}
	q.about(cloud.KindInstance, id, tagged(n.Tags), inSubnet(q.call, n.Subnet),
		keys{"ec2:instanceid": {id}, "ec2:instancetype": {n.Type}})
}

func (q *questions) group(id string) {
	if !q.could(cloud.KindGroup, id) {
		return
	}
	g := q.call.State.Groups[vpc.SecurityGroupID(id)]
	if g == nil {
		q.missing(cloud.KindGroup, id)
		return
	}
	q.about(cloud.KindGroup, id, tagged(g.Tags), ofVPC(q.call), keys{"ec2:securitygroupid": {id}})
}

func (q *questions) subnet(id string) {
	if !q.could(cloud.KindSubnet, id) {
		return
	}
	n := q.call.State.Subnets[vpc.SubnetID(id)]
	if n == nil {
		q.missing(cloud.KindSubnet, id)
		return
	}
	q.about(cloud.KindSubnet, id, inSubnet(q.call, n.ID), tagged(n.Tags))
}

func (q *questions) table(id string) {
	if !q.could(cloud.KindTable, id) {
		return
	}
	t := q.call.State.RouteTables[vpc.RouteTableID(id)]
	if t == nil {
		q.missing(cloud.KindTable, id)
		return
	}
	q.about(cloud.KindTable, id, tagged(t.Tags), ofVPC(q.call))
}

// ofVPC is the key of what lies in the VPC and in no subnet of it.
func ofVPC(c *query.Call) keys {
	return keys{"ec2:vpc": {arn(c, cloud.KindVPC, string(c.State.VPC.ID))}}
}
