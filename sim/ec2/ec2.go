// Package ec2 is the EC2 API of the embedded VPC: the table of actions, their
// messages and what each does to sim/cloud.
//
// A message is a Go struct whose tags name its members on the wire; that table is
// the only place they are written, and a test holds every one of them against
// AWS's own SDK, both ways. What a struct does not have is refused in a request
// and absent from an answer. sim/world serves it through sim/query.
//
// Source: EC2 API reference, version 2016-11-15; each action names its page.
package ec2

import (
	"slices"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/query"
)

// Version is the API version that clients send.
const Version = "2016-11-15"

// api is what the handlers share.
type api struct {
	cloud  *cloud.Cloud
	tokens *tokens
}

// Service is EC2 over an account.
func Service(c *cloud.Cloud) query.Service {
	a := &api{cloud: c, tokens: newTokens()}
	return query.Service{
		Name: "ec2", Version: Version, Dialect: query.EC2,
		Actions: slices.Concat(
			a.interfaceActions(), a.attachmentActions(), a.addressActions(), a.tagActions(),
			a.networkActions(), a.groupActions(), a.routeActions(), a.instanceActions(),
		),
	}
}

// page is an action's page in the API reference.
func page(action string) string {
	return "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_" + action + ".html"
}

// returned is the answer of actions that say no more than that it is done.
type returned struct {
	Return bool `q:"return"`
}

// done is that answer, or the error.
func done(err error) (*returned, error) {
	if err != nil {
		return nil, err
	}
	return &returned{Return: true}, nil
}
