package ec2

import (
	"strings"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

func (a *api) tagActions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[changeTags, returned]{
			Name: "CreateTags", Page: page("CreateTags"), Permit: permitTags,
			Do: func(_ *query.Call, r *changeTags) (*returned, error) {
				if len(r.Tags) == 0 {
					return nil, cloud.MissingParameter("tagSet")
				}
				return done(a.cloud.Tag(r.Resources, r.tags()))
			},
		}),
		query.Handle(query.Spec[changeTags, returned]{
			Name: "DeleteTags", Page: page("DeleteTags"), Permit: permitTags,
			Do: func(_ *query.Call, r *changeTags) (*returned, error) {
				gone := map[string]*string{}
				for _, t := range r.Tags {
					gone[t.Key] = t.Value
				}
				return done(a.cloud.Untag(r.Resources, gone))
			},
		}),
		query.Handle(query.Spec[describeTags, tagList]{
			Name: "DescribeTags", Page: page("DescribeTags"), ReadOnly: true,
			Permit: onAnyResource[describeTags], Do: listTags,
		}),
	}
}

type changeTags struct {
	query.DryRun
	Resources []string `q:"ResourceId,required"`
	Tags      []Tag    `q:"Tag"`
}

func (r changeTags) tags() cloud.Tags {
	out := cloud.Tags{}
	for _, t := range r.Tags {
		out[t.Key] = t.text()
	}
	return out
}

// maxTagged is how many resources one call may tag. Source: API_CreateTags.html.
const maxTagged = 1000

// permitTags requires permission for every resource, with its tags and those of the
// request.
func permitTags(c *query.Call, r *changeTags) ([]iam.Request, error) {
	if n := len(r.Resources); n > maxTagged {
		return nil, cloud.InvalidParameter("The request names %d resources. It can name %d at most.", n, maxTagged)
	}
	q := &authorization{call: c}
	for _, id := range r.Resources {
		if tags, kind, ok := c.State.TagsOf(id); ok {
			q.require(kind, id, tagged(tags), tagging(r.tags()))
			continue
		}
		kind, ok := kindOf(id)
		if !ok {
			return nil, cloud.Errorf("InvalidID", "The ID '%s' is not valid", id)
		}
		if q.wellFormed(kind, id) {
			q.missing(kind, id, tagging(r.tags()))
		}
	}
	return q.result()
}

// kindOf returns the kind of taggable resource that an id's prefix denotes; false for
// any other prefix.
func kindOf(id string) (kind cloud.Kind, ok bool) {
	prefix, _, _ := strings.Cut(id, "-")
	kinds := map[string]cloud.Kind{
		"eni": cloud.KindInterface, "subnet": cloud.KindSubnet, "vpc": cloud.KindVPC, "i": cloud.KindInstance,
		"sg": cloud.KindGroup, "sgr": cloud.KindRule, "rtb": cloud.KindTable, "igw": cloud.KindGateway,
		"eipalloc": cloud.KindAddress, "scr": cloud.KindReservation,
	}
	kind, ok = kinds[prefix]
	return kind, ok
}

type describeTags struct {
	query.DryRun
	Page
	Filters []Filter `q:"Filter"`
}

type tagItemXML struct {
	Resource string `q:"resourceId"`
	Kind     string `q:"resourceType"`
	Key      string `q:"key"`
	Value    string `q:"value"`
}

type tagList struct {
	Tags      []tagItemXML `q:"tagSet"`
	NextToken string       `q:"nextToken,omitempty"`
}

func listTags(c *query.Call, r *describeTags) (*tagList, error) {
	var all []tagItemXML
	for _, res := range c.State.Resources() {
		for _, k := range sortedKeys(res.Tags) {
			all = append(all, tagItemXML{res.ID, string(res.Kind), k, res.Tags[k]})
		}
	}
	items, next, err := listing[tagItemXML]{
		kind: "tag", all: all, filters: r.Filters, page: r.Page,
		id:    func(t tagItemXML) string { return t.Kind + " " + t.Resource + " " + t.Key },
		tags:  func(t tagItemXML) cloud.Tags { return cloud.Tags{t.Key: t.Value} },
		attrs: tagAttributes(),
	}.list(c)
	return &tagList{Tags: items, NextToken: next}, err
}

// tagAttributes are the filters of DescribeTags.
func tagAttributes() attributes[tagItemXML] {
	return attributes[tagItemXML]{
		"key":           func(t tagItemXML) []string { return one(t.Key) },
		"value":         func(t tagItemXML) []string { return one(t.Value) },
		"resource-id":   func(t tagItemXML) []string { return one(t.Resource) },
		"resource-type": func(t tagItemXML) []string { return one(t.Kind) },
	}
}
