package ec2

import (
	"slices"
	"strings"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/query"
)

func placeActions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[describeRegions, regionList]{
			Name: "DescribeRegions", Page: page("DescribeRegions"), ReadOnly: true,
			Permit: onAnyResource[describeRegions], Do: listRegions,
		}),
		query.Handle(query.Spec[describeGateways, gatewayList]{
			Name: "DescribeInternetGateways", Page: page("DescribeInternetGateways"), ReadOnly: true,
			Permit: onAnyResource[describeGateways], Do: listGateways,
		}),
	}
}

type describeRegions struct {
	query.DryRun
	Names   []string `q:"RegionName"`
	Filters []Filter `q:"Filter"`
	All     bool     `q:"AllRegions"` // there are no regions to opt in to
}

// regionXML is Region. Source: API_Region.html.
type regionXML struct {
	Name     string `q:"regionName"`
	Endpoint string `q:"regionEndpoint"`
	OptIn    string `q:"optInStatus"`
}

type regionList struct {
	Regions []regionXML `q:"regionInfo"`
}

// listRegions lists the account's region: it has no other. The text of the error for
// another one is ours.
func listRegions(c *query.Call, r *describeRegions) (*regionList, error) {
	region := c.State.Region
	unknown := slices.DeleteFunc(slices.Clone(r.Names), func(name string) bool { return name == region })
	if len(unknown) > 0 {
		return nil, cloud.InvalidParameter("Invalid region names: [%s]", strings.Join(unknown, ", "))
	}
	all := []regionXML{{Name: region, Endpoint: "ec2." + region + "." + cloud.PartitionOf(region).Domain, OptIn: "opt-in-not-required"}}
	out, err := keep(c, all, r.Filters, regionAttributes(), nil)
	return &regionList{out}, err
}

// regionAttributes are the filters of DescribeRegions.
func regionAttributes() attributes[regionXML] {
	return attributes[regionXML]{
		"endpoint":      func(x regionXML) []string { return one(x.Endpoint) },
		"opt-in-status": func(x regionXML) []string { return one(x.OptIn) },
		"region-name":   func(x regionXML) []string { return one(x.Name) },
	}
}

type describeGateways struct {
	query.DryRun
	Page
	IDs     []string `q:"InternetGatewayId"`
	Filters []Filter `q:"Filter"`
}

type gatewayAttachmentXML struct {
	VPC   string `q:"vpcId"`
	State string `q:"state"`
}

// gatewayXML is InternetGateway. Source: API_InternetGateway.html.
type gatewayXML struct {
	ID          string                 `q:"internetGatewayId"`
	Owner       string                 `q:"ownerId"`
	Attachments []gatewayAttachmentXML `q:"attachmentSet"`
	Tags        []tagXML               `q:"tagSet"`
}

type gatewayList struct {
	Gateways  []gatewayXML `q:"internetGatewaySet"`
	NextToken string       `q:"nextToken,omitempty"`
}

// listGateways lists the internet gateway of the VPC, if it has one.
func listGateways(c *query.Call, r *describeGateways) (*gatewayList, error) {
	s := c.State
	var all []gatewayXML
	if s.Gateway != "" { // an attached gateway is "available": API_InternetGatewayAttachment.html
		all = []gatewayXML{{
			ID: string(s.Gateway), Owner: s.Account, Tags: tagsXML(s.GatewayTags),
			Attachments: []gatewayAttachmentXML{{string(s.VPC.ID), "available"}},
		}}
	}
	out, next, err := listing[gatewayXML]{
		kind: cloud.KindGateway, set: "internetGatewayId", all: all, ids: r.IDs, filters: r.Filters, page: r.Page,
		id:    func(x gatewayXML) string { return x.ID },
		tags:  func(gatewayXML) cloud.Tags { return s.GatewayTags },
		attrs: gatewayAttributes(),
	}.list(c)
	return &gatewayList{out, next}, err
}

// gatewayAttributes are the filters of DescribeInternetGateways.
func gatewayAttributes() attributes[gatewayXML] {
	return attributes[gatewayXML]{
		"attachment.state": func(x gatewayXML) []string {
			return each(x.Attachments, func(at gatewayAttachmentXML) string { return at.State })
		},
		"attachment.vpc-id": func(x gatewayXML) []string {
			return each(x.Attachments, func(at gatewayAttachmentXML) string { return at.VPC })
		},
		"internet-gateway-id": func(x gatewayXML) []string { return one(x.ID) },
		"owner-id":            func(x gatewayXML) []string { return one(x.Owner) },
	}
}
