package crds

import (
	"fmt"
	"strings"
	"testing"
)

const securityGroups = deploy + "/crds/trunkline.dev_securitygroups.yaml"

func securityGroup(name, spec string) string {
	return `{"apiVersion":"trunkline.dev/v1alpha1","kind":"SecurityGroup","metadata":{"name":"` + name + `"},"spec":{"vpcID":"vpc-0123456789abcdef0",` + spec + `}}`
}

func absentGroup(name, rest string) string {
	return `{"apiVersion":"trunkline.dev/v1alpha1","kind":"SecurityGroup","metadata":{"name":"` + name + `"},"spec":{"absent":true` + rest + `}}`
}

func TestASecurityGroupHasRulesThatNodesCanRead(t *testing.T) {
	const id = "sg-0123456789abcdef0"
	rules := func(list ...string) string {
		return securityGroup(id, `"rules":[`+strings.Join(list, ",")+`]`)
	}
	rule := func(n int, rest string) string {
		return fmt.Sprintf(`{"id":"sgr-0123456789abcdef%d","direction":"Ingress","protocol":6,"fromPort":80,"toPort":90,%s}`, n, rest)
	}
	ranges := rule(0, `"prefixes":["10.0.0.0/8"]`)
	judge(t, securityGroups, []verdict{
		{name: "ranges, a group, and peers that are not known", object: rules(ranges, rule(1, `"groupID":"sg-01234567"`), rule(2, `"unusable":"it is of vpc-2"`))},
		{name: "members and pools", object: securityGroup(id, `"members":["10.0.0.4/32"],"pools":["10.0.0.16/28"]`)},
		{name: "an ICMP type of all codes", object: rules(strings.Replace(ranges, `"protocol":6,"fromPort":80,"toPort":90`, `"protocol":1,"fromPort":8,"toPort":-1`, 1))},
		{name: "a group that EC2 does not have", object: absentGroup(id, "")},
		{name: "one with a VPC", object: absentGroup(id, `,"vpcID":"vpc-0123456789abcdef0"`), refused: "exactly one of vpcID and absent"},
		{name: "one with rules", object: absentGroup(id, `,"rules":[`+ranges+`]`), refused: "a group that is absent has nothing else"},
		{name: "neither a VPC nor absent", object: strings.Replace(securityGroup(id, `"groupName":"web"`), `"vpcID":"vpc-0123456789abcdef0",`, "", 1), refused: "exactly one of vpcID and absent"},
		{name: "another name", object: securityGroup("web", `"members":[]`), refused: "the name must be the id of a security group"},
		{name: "no VPC", object: strings.Replace(rules(), "vpc-0123456789abcdef0", "", 1), refused: "vpcID"},
		{name: "a rule twice", object: rules(ranges, ranges), refused: "Duplicate value"},
		{name: "a rule without peers", object: rules(strings.Replace(ranges, `,"prefixes":["10.0.0.0/8"]`, "", 1)), refused: "exactly one of prefixes, groupID and unusable"},
		{name: "an empty list of ranges", object: rules(rule(0, `"prefixes":[]`)), refused: "prefixes"},
		{name: "ranges and a group", object: rules(rule(0, `"prefixes":["10.0.0.0/8"],"groupID":"sg-01234567"`)), refused: "exactly one of prefixes, groupID and unusable"},
		{name: "ports in the wrong order", object: rules(strings.Replace(ranges, `"toPort":90`, `"toPort":79`, 1)), refused: "fromPort must not be greater than toPort"},
		{name: "a port beyond the last", object: rules(strings.Replace(ranges, `"toPort":90`, `"toPort":65536`, 1)), refused: "toPort"},
		{name: "an unknown direction", object: rules(strings.Replace(ranges, "Ingress", "Both", 1)), refused: "Unsupported value"},
		{name: "a protocol that does not exist", object: rules(strings.Replace(ranges, `"protocol":6`, `"protocol":256`, 1)), refused: "protocol"},
		{name: "a reference to a name", object: rules(rule(0, `"groupID":"default"`)), refused: "groupID"},
	})
}
