// Package ec2 is the EC2 API of the embedded VPC: the table of actions, their
// messages and their effects on sim/cloud.
//
// A message is a Go struct with tags that name its members on the wire. That table is
// the only description of the messages, and a test compares every member with AWS's
// own SDK in both directions. A member that the struct lacks is absent from a response;
// in a request it is refused, and refusals.go has the reason. A new action or filter
// adds its own reasons there. sim/world serves the API through sim/query.
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

// api is the state that the handlers share.
type api struct {
	cloud  *cloud.Cloud
	tokens *tokens
}

// Service returns EC2 for an account.
func Service(c *cloud.Cloud) query.Service {
	a := &api{cloud: c, tokens: newTokens()}
	return query.Service{
		Name: "ec2", Version: Version, Dialect: query.EC2, Refusals: refusals(),
		Actions: slices.Concat(
			a.interfaceActions(), a.attachmentActions(), a.addressActions(), a.tagActions(),
			a.networkActions(), a.groupActions(), a.routeActions(), a.instanceActions(),
			permissionAPI{a}.actions(), groupAPI{a}.actions(), elasticAPI{a}.actions(), instanceAPI{a}.actions(), placeActions(),
			subnetAPI{a}.actions(), tableAPI{a}.actions(), vpcAPI{a}.actions(), reservationAPI{a}.actions(), trunkAPI{a}.actions(),
		),
	}
}

// page returns the URL of an action's page in the API reference.
func page(action string) string {
	return "https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_" + action + ".html"
}

// returned is the response of actions that report success alone.
type returned struct {
	Return bool `q:"return"`
}

// done makes a success response from a nil error.
func done(err error) (*returned, error) {
	if err != nil {
		return nil, err
	}
	return &returned{Return: true}, nil
}
