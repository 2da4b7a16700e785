package iam_test

import (
	"os"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/sim/iam"
)

// Each case is a rule of "IAM policy elements: Variables and tags" in the IAM user guide,
// except the one about wildcards in values, which the guide does not have.
func TestPolicyVariablesAreReplacedAsByIAM(t *testing.T) {
	with := func(key, value string) map[string][]string {
		return map[string][]string{"aws:userid": {"AROA1:i-1"}, key: {value}}
	}
	const tag = "aws:resourcetag/node.k8s.amazonaws.com/instance_id"
	for _, test := range []struct {
		name, condition string
		keys            map[string][]string
		want            iam.Verdict
	}{
		{"the value of a key", `"StringLike": {"aws:userid": "*:${aws:ResourceTag/node.k8s.amazonaws.com/instance_id}"}`, with(tag, "i-1"), iam.Allow},
		{"another value", `"StringLike": {"aws:userid": "*:${aws:ResourceTag/node.k8s.amazonaws.com/instance_id}"}`, with(tag, "i-2"), iam.NoMatch},
		{"names of keys without case", `"StringLike": {"AWS:UserId": "*:${AWS:resourceTag/node.k8s.amazonaws.com/instance_id}"}`, with(tag, "i-1"), iam.Allow},
		{"tag keys with case", `"StringLike": {"aws:userid": "*:${aws:ResourceTag/Node.k8s.amazonaws.com/instance_id}"}`, with(tag, "i-1"), iam.NoMatch},
		{"no value is like nothing", `"StringLike": {"aws:userid": "*${aws:ResourceTag/none}"}`, with(tag, "i-1"), iam.NoMatch},
		{"no value equals nothing", `"StringEquals": {"aws:userid": "AROA1:i-1${aws:ResourceTag/none}"}`, with(tag, "i-1"), iam.NoMatch},
		{"an inverted operator holds for no value", `"StringNotEquals": {"aws:userid": "${aws:ResourceTag/none}"}`, with(tag, "i-1"), iam.Allow},
		{"a default value", `"StringLike": {"aws:userid": "*:${aws:ResourceTag/none, 'i-1'}"}`, with(tag, "i-1"), iam.Allow},
		{"a default value is not for a key that has one", `"StringLike": {"aws:userid": "*:${aws:ResourceTag/node.k8s.amazonaws.com/instance_id, 'i-1'}"}`, with(tag, "i-2"), iam.NoMatch},
		{"wildcards in a value are characters", `"StringLike": {"aws:userid": "*:${aws:ResourceTag/node.k8s.amazonaws.com/instance_id}"}`, with(tag, "*"), iam.NoMatch},
		{"an escaped wildcard is a character", `"StringLike": {"aws:userid": "${*}:i-1"}`, with(tag, "i-1"), iam.NoMatch},
		{"an escaped wildcard as such", `"StringLike": {"aws:ResourceTag/k": "a${*}${?}${$}"}`, with("aws:resourcetag/k", "a*?$"), iam.Allow},
		{"StringEquals takes no wildcards", `"StringEquals": {"aws:userid": "*:i-1"}`, with(tag, "i-1"), iam.NoMatch},
		{
			"in an ARN operator", `"ArnEquals": {"ec2:SourceInstanceARN": "arn:*:ec2:*:*:instance/${ec2:InstanceID}"}`,
			map[string][]string{"ec2:sourceinstancearn": {"arn:aws-cn:ec2:r:1:instance/i-1"}, "ec2:instanceid": {"i-1"}},
			iam.Allow,
		},
		{"a wildcard of an ARN ends at the colon", `"ArnLike": {"ec2:Vpc": "arn:*:vpc/vpc-1"}`, with("ec2:vpc", "arn:aws:ec2:r:1:vpc/vpc-1"), iam.NoMatch},
		{"an ARN operator on what is no ARN", `"ArnLike": {"ec2:Vpc": "arn:*:ec2:*:*:*"}`, with("ec2:vpc", "vpc-1"), iam.NoMatch},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := policy(t, `{"Effect": "Allow", "Action": "ec2:*", "Resource": "*", "Condition": {`+test.condition+`}}`)
			if got := p.Decide(iam.Request{Action: "ec2:X", Keys: test.keys}); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestAVariableInAResourceWithoutAValueMatchesNoResource(t *testing.T) {
	p := policy(t, `{"Effect": "Allow", "Action": "ec2:X", "Resource": "arn:aws:ec2:*:*:network-interface/${ec2:NetworkInterfaceID}"}`)
	if got := p.Decide(iam.Request{Action: "ec2:X", Resource: eni, Keys: map[string][]string{"ec2:networkinterfaceid": {"eni-1"}}}); got != iam.Allow {
		t.Errorf("with the value: %s", got)
	}
	if got := p.Decide(iam.Request{Action: "ec2:X", Resource: eni}); got != iam.NoMatch {
		t.Errorf("without: %s", got)
	}
}

// GovCloud and China have partitions of their own in all ARNs.
func TestTheShippedPoliciesAllowTheSameInEveryPartition(t *testing.T) {
	document, err := os.ReadFile("../../deploy/iam/node-policy.json")
	if err != nil {
		t.Fatal(err)
	}
	p, err := iam.ParsePolicy("node", document)
	if err != nil {
		t.Fatal(err)
	}
	for _, partition := range []string{"aws", "aws-us-gov", "aws-cn"} {
		arn := func(rest string) string { return strings.Replace(rest, "arn:aws:", "arn:"+partition+":", 1) }
		keys := map[string][]string{
			"aws:userid": {"AROA1:i-1"}, "ec2:sourceinstancearn": {arn("arn:aws:ec2:r:1:instance/i-1")}, "aws:ec2instancesourcevpc": {"vpc-1"},
			"ec2:instanceid": {"i-1"}, "ec2:vpc": {arn("arn:aws:ec2:r:1:vpc/vpc-1")}, "ec2:createaction": {"CreateNetworkInterface"},
			"aws:resourcetag/node.k8s.amazonaws.com/instance_id": {"i-1"}, "aws:requesttag/node.k8s.amazonaws.com/instance_id": {"i-1"},
			"aws:requesttag/trunkline.dev/managed-by": {"trunkline"},
		}
		for _, r := range []iam.Request{
			{Action: "ec2:AssignPrivateIpAddresses", Resource: arn(eni)},
			{Action: "ec2:DetachNetworkInterface", Resource: arn(eni)},
			{Action: "ec2:DetachNetworkInterface", Resource: arn("arn:aws:ec2:r:1:instance/i-1")},
			{Action: "ec2:CreateNetworkInterface", Resource: arn("arn:aws:ec2:r:1:subnet/subnet-1")},
			{Action: "ec2:CreateNetworkInterface", Resource: arn("arn:aws:ec2:r:1:network-interface/*")},
			{Action: "ec2:CreateTags", Resource: arn("arn:aws:ec2:r:1:network-interface/*")},
		} {
			r.Keys = keys
			if got := p.Decide(r); got != iam.Allow {
				t.Errorf("%s on %s: %s", r.Action, r.Resource, got)
			}
		}
	}
}
