package ec2

import (
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// groupAPI has the actions on security groups.
type groupAPI struct{ *api }

func (a groupAPI) actions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[createGroup, createdGroup]{
			Name: "CreateSecurityGroup", Page: page("CreateSecurityGroup"), Permit: permitCreateGroup, Do: a.createGroup,
		}),
		query.Handle(query.Spec[deleteGroup, deletedGroup]{
			Name: "DeleteSecurityGroup", Page: page("DeleteSecurityGroup"), Permit: permitDeleteGroup,
			Do: func(_ *query.Call, r *deleteGroup) (*deletedGroup, error) {
				if err := a.cloud.Group(vpc.SecurityGroupID(r.ID)).Delete(); err != nil {
					return nil, err
				}
				return &deletedGroup{Return: true, ID: r.ID}, nil
			},
		}),
	}
}

type createGroup struct {
	query.DryRun
	Name        string             `q:"GroupName,required"`
	Description string             `q:"GroupDescription,required"`
	VPC         string             `q:"VpcId"`
	Tags        []TagSpecification `q:"TagSpecification"`
}

type createdGroup struct {
	Return bool     `q:"return"`
	ID     string   `q:"groupId"`
	ARN    string   `q:"securityGroupArn"`
	Tags   []tagXML `q:"tagSet,omitempty"`
}

// permitCreateGroup requires permission for the new group, its VPC and, if it is tagged,
// for CreateTags. Source: Service Authorization Reference, EC2.
func permitCreateGroup(c *query.Call, r *createGroup) ([]iam.Request, error) {
	if r.VPC == "" {
		return nil, noDefaultVPC()
	}
	tags, err := tagsFor(cloud.KindGroup, r.Tags)
	if err != nil {
		return nil, err
	}
	q := &authorization{call: c}
	q.require(cloud.KindGroup, "*", ofVPC(c), tagging(tags))
	q.vpc(r.VPC)
	q.createTags(cloud.KindGroup, tags, ofVPC(c))
	return q.result()
}

func (a groupAPI) createGroup(c *query.Call, r *createGroup) (*createdGroup, error) {
	tags, err := tagsFor(cloud.KindGroup, r.Tags)
	if err != nil {
		return nil, err
	}
	made, err := a.cloud.VPC(vpc.ID(r.VPC)).CreateGroup(r.Name, r.Description, tags)
	if err != nil {
		return nil, err
	}
	return &createdGroup{
		Return: true, ID: string(made.ID), ARN: arn(c, cloud.KindGroup, string(made.ID)), Tags: tagsXML(made.Tags),
	}, nil
}

type deleteGroup struct {
	query.DryRun
	ID   string `q:"GroupId"`
	Name string `q:"GroupName"`
}

type deletedGroup struct {
	Return bool   `q:"return"`
	ID     string `q:"groupId"`
}

func permitDeleteGroup(c *query.Call, r *deleteGroup) ([]iam.Request, error) {
	switch {
	case r.ID == "" && r.Name == "":
		return nil, cloud.MissingParameter("groupName or groupId")
	case r.ID == "":
		return nil, noDefaultVPC()
	}
	q := &authorization{call: c}
	q.group(r.ID)
	return q.result()
}
