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

// askInterface asks about an existing interface.
func askInterface(c *query.Call, id string) (iam.Request, error) {
	if err := cloud.KindInterface.CheckID(id); err != nil {
		return iam.Request{}, err
	}
	i := c.State.Interfaces[vpc.ENIID(id)]
	if i == nil {
		return iam.Request{}, cloud.KindInterface.NotFound(id)
	}
	return ask(c, cloud.KindInterface, id, tagged(i.Tags), inSubnet(c, i.Subnet),
		keys{"ec2:networkinterfaceid": {id}}), nil
}

// askInstance asks about an existing instance.
func askInstance(c *query.Call, id string) (iam.Request, error) {
	if err := cloud.KindInstance.CheckID(id); err != nil {
		return iam.Request{}, err
	}
	n := c.State.Instances[vpc.InstanceID(id)]
	if n == nil {
		return iam.Request{}, cloud.KindInstance.NotFound(id)
	}
	return ask(c, cloud.KindInstance, id, tagged(n.Tags), inSubnet(c, n.Subnet),
		keys{"ec2:instanceid": {id}, "ec2:instancetype": {n.Type}}), nil
}

// askGroup asks about an existing security group.
func askGroup(c *query.Call, id string) (iam.Request, error) {
	if err := cloud.KindGroup.CheckID(id); err != nil {
		return iam.Request{}, err
	}
	g := c.State.Groups[vpc.SecurityGroupID(id)]
	if g == nil {
		return iam.Request{}, cloud.KindGroup.NotFound(id)
	}
	return ask(c, cloud.KindGroup, id, tagged(g.Tags), keys{
		"ec2:vpc": {arn(c, cloud.KindVPC, string(c.State.VPC.ID))}, "ec2:securitygroupid": {id},
	}), nil
}
