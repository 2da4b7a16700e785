package cloud

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// maxTags is how many tags one resource takes. Source: EC2 user guide, "Tag
// restrictions".
const maxTags = 50

// mergeTags adds tags to those of a resource, within EC2's restrictions.
func mergeTags(into, tags Tags) error {
	for k, v := range tags {
		switch {
		case k == "":
			return InvalidParameter("Tag key cannot be empty.")
		case utf8.RuneCountInString(k) > 128:
			return InvalidParameter("Tag key exceeds the maximum length of 128 characters: %s", k)
		case utf8.RuneCountInString(v) > 256:
			return InvalidParameter("Tag value exceeds the maximum length of 256 characters: %s", v)
		case strings.HasPrefix(strings.ToLower(k), "aws:"):
			return InvalidParameter("Tag keys starting with 'aws:' are reserved for internal use")
		}
		into[k] = v
	}
	if len(into) > maxTags {
		return Errorf("TagLimitExceeded", "You have reached the maximum number of tags (%d) per resource.", maxTags)
	}
	return nil
}

// nameTags merges a Spec's tags and its name.
func nameTags(into Tags, name string, tags Tags) error {
	if name != "" {
		into["Name"] = name
	}
	return mergeTags(into, tags)
}

// TagsOf returns the tags and the kind of any resource; false if no such resource
// exists.
func (s *State) TagsOf(id string) (tags Tags, kind Kind, ok bool) {
	for _, r := range s.Resources() {
		if r.ID == id {
			return r.Tags, r.Kind, true
		}
	}
	return nil, "", false
}

// Resource is an object that can be tagged.
type Resource struct {
	ID   string
	Kind Kind
	Tags Tags
}

// Resources lists all objects that can be tagged, ordered by kind and id.
func (s *State) Resources() []Resource {
	var out []Resource
	for _, a := range Sorted(s.Addresses) {
		out = append(out, Resource{string(a.ID), KindAddress, a.Tags})
	}
	for _, n := range Sorted(s.Instances) {
		out = append(out, Resource{string(n.ID), KindInstance, n.Tags})
	}
	if s.Gateway != "" {
		out = append(out, Resource{string(s.Gateway), KindGateway, s.GatewayTags})
	}
	for _, i := range Sorted(s.Interfaces) {
		out = append(out, Resource{string(i.ID), KindInterface, i.Tags})
	}
	for _, t := range Sorted(s.RouteTables) {
		out = append(out, Resource{string(t.ID), KindTable, t.Tags})
	}
	for _, g := range Sorted(s.Groups) {
		out = append(out, Resource{string(g.ID), KindGroup, g.Tags})
	}
	out = append(out, s.ruleResources()...)
	for _, n := range Sorted(s.Subnets) {
		out = append(out, Resource{string(n.ID), KindSubnet, n.Tags})
	}
	out = append(out, s.reservationResources()...)
	return append(out, Resource{string(s.VPC.ID), KindVPC, s.VPC.Tags})
}

// ruleResources lists the rules of all groups, ordered by id.
func (s *State) ruleResources() []Resource {
	rules := map[string]Resource{}
	for _, g := range s.Groups {
		for _, r := range slices.Concat(g.Ingress, g.Egress) {
			rules[r.ID] = Resource{r.ID, KindRule, r.Tags}
		}
	}
	return Sorted(rules)
}

// reservationResources lists the reservations of all subnets, ordered by id.
func (s *State) reservationResources() []Resource {
	all := map[string]Resource{}
	for _, n := range s.Subnets {
		for _, r := range n.Reservations {
			all[r.ID] = Resource{r.ID, KindReservation, r.Tags}
		}
	}
	return Sorted(all)
}

// setReservationTags replaces the tags of a reservation of a subnet.
func setReservationTags(ch *change, n *Subnet, id string, tags Tags) {
	m := *n
	m.Reservations = slices.Clone(n.Reservations)
	for k := range m.Reservations {
		if m.Reservations[k].ID == id {
			m.Reservations[k].Tags = tags
		}
	}
	ch.Subnets[m.ID] = &m
}

// setRuleTags replaces the tags of a rule; false if no group has it.
func (ch *change) setRuleTags(id string, tags Tags) bool {
	for _, g := range ch.Groups {
		for _, d := range []Direction{Ingress, Egress} {
			k := slices.IndexFunc(*g.rules(d), func(r Rule) bool { return r.ID == id })
			if k < 0 {
				continue
			}
			n := *g
			rules := slices.Clone(*g.rules(d))
			rules[k].Tags = tags
			*n.rules(d) = rules
			ch.Groups[g.ID] = &n
			return true
		}
	}
	return false
}

// Tag adds or overwrites tags of resources. If one id is unknown, no resource is
// tagged.
func (c *Cloud) Tag(ids []string, tags Tags) error {
	return retag(c, ids, func(t Tags) error { return mergeTags(t, tags) })
}

// Untag removes tags. An entry with a nil value removes the key whatever its value;
// without entries all tags are removed.
func (c *Cloud) Untag(ids []string, tags map[string]*string) error {
	return retag(c, ids, func(t Tags) error {
		if len(tags) == 0 {
			clear(t)
		}
		for k, v := range tags {
			if have, ok := t[k]; ok && (v == nil || *v == have) {
				delete(t, k)
			}
		}
		return nil
	})
}

func retag(c *Cloud, ids []string, edit func(Tags) error) error {
	return c.apply(func(ch *change) error {
		for _, id := range ids {
			old, _, ok := ch.TagsOf(id)
			if !ok {
				return Errorf("InvalidID", "The ID '%s' is not valid", id)
			}
			tags := maps.Clone(old)
			if tags == nil {
				tags = Tags{}
			}
			if err := edit(tags); err != nil {
				return err
			}
			ch.setTags(id, tags)
		}
		return nil
	})
}

func (ch *change) setTags(id string, tags Tags) {
	switch {
	case ch.Instances[vpc.InstanceID(id)] != nil:
		n := *ch.Instances[vpc.InstanceID(id)]
		n.Tags = tags
		ch.Instances[n.ID] = &n
	case ch.Interfaces[vpc.ENIID(id)] != nil:
		i := ch.Interfaces[vpc.ENIID(id)].clone()
		i.Tags = tags
		ch.Interfaces[i.ID] = i
	case ch.RouteTables[vpc.RouteTableID(id)] != nil:
		t := *ch.RouteTables[vpc.RouteTableID(id)]
		t.Tags = tags
		ch.RouteTables[t.ID] = &t
	case ch.Groups[vpc.SecurityGroupID(id)] != nil:
		g := *ch.Groups[vpc.SecurityGroupID(id)]
		g.Tags = tags
		ch.Groups[g.ID] = &g
	case ch.Subnets[vpc.SubnetID(id)] != nil:
		n := *ch.Subnets[vpc.SubnetID(id)]
		n.Tags = tags
		ch.Subnets[n.ID] = &n
	case ch.Addresses[AllocationID(id)] != nil:
		a := *ch.Addresses[AllocationID(id)]
		a.Tags = tags
		ch.Addresses[a.ID] = &a
	case ch.ReservedIn(id) != nil:
		setReservationTags(ch, ch.ReservedIn(id), id, tags)
	case ch.setRuleTags(id, tags):
	case id == string(ch.Gateway):
		ch.GatewayTags = tags
	default:
		ch.VPC.Tags = tags
	}
}
