package iam_test

import (
	"maps"
	"os"
	"testing"

	"github.com/trunkline/trunkline/sim/iam"
)

// shipped parses a policy of deploy/iam.
func shipped(t *testing.T, file string) *iam.Policy {
	t.Helper()
	document, err := os.ReadFile("../../deploy/iam/" + file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := iam.ParsePolicy(file, document)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Condition keys as requests have them: names in lower case, tag keys as written.
const (
	requestTag  = "aws:requesttag/"
	resourceTag = "aws:resourcetag/"
	instanceTag = "node.k8s.amazonaws.com/instance_id"
	clusterTag  = "cluster.k8s.amazonaws.com/name"
	managedTag  = "trunkline.dev/managed-by"
)

// conditioned is a request that a shipped policy allows, and the values of its keys that
// each deny it alone.
type conditioned struct {
	policy, action, resource string
	keys                     map[string][]string
	denied                   map[string][]string // by key: values of which each denies; "" is an absent key
}

func onNode() []conditioned {
	const instance = "arn:aws:ec2:r:1:instance/"
	session := func(more map[string][]string) map[string][]string {
		keys := map[string][]string{"aws:userid": {"AROA1:i-1"}, "ec2:sourceinstancearn": {instance + "i-1"}}
		maps.Copy(keys, more)
		return keys
	}
	stolen := func(more map[string][]string) map[string][]string {
		keys := map[string][]string{"aws:userid": {"AROA1:i-2", ""}, "ec2:sourceinstancearn": {instance + "i-2", ""}}
		maps.Copy(keys, more)
		return keys
	}
	own := conditioned{
		"node-policy.json", "", eni, session(map[string][]string{resourceTag + instanceTag: {"i-1"}}),
		// Trunks and branches have the tag of their instance too; their groups are not its role's to change.
		stolen(map[string][]string{resourceTag + instanceTag: {"i-2", ""}, resourceTag + "node.k8s.amazonaws.com/no_manage": {"true"}, resourceTag + "eks:eni:owner": {"eks-vpc-resource-controller"}}),
	}
	attachment := conditioned{
		"node-policy.json", "", instance + "i-1", session(map[string][]string{"ec2:instanceid": {"i-1"}}),
		stolen(map[string][]string{"ec2:instanceid": {"i-2", ""}}),
	}
	list := []conditioned{
		{
			"node-policy.json", "ec2:CreateNetworkInterface", eni,
			session(map[string][]string{requestTag + instanceTag: {"i-1"}, requestTag + managedTag: {"trunkline"}}),
			stolen(map[string][]string{requestTag + instanceTag: {"i-2", ""}, requestTag + managedTag: {"other", ""}}),
		},
		{
			"node-policy.json", "ec2:CreateTags", eni,
			session(map[string][]string{requestTag + instanceTag: {"i-1"}, "ec2:createaction": {"CreateNetworkInterface"}, "aws:tagkeys": {instanceTag, managedTag}}),
			stolen(map[string][]string{requestTag + instanceTag: {"i-2", ""}, "ec2:createaction": {"RunInstances", ""}, "aws:tagkeys": {"kubernetes.io/role"}}),
		},
	}
	for _, resource := range []string{"subnet/subnet-1", "security-group/sg-1"} {
		list = append(list, conditioned{
			"node-policy.json", "ec2:CreateNetworkInterface", "arn:aws:ec2:r:1:" + resource,
			map[string][]string{"ec2:vpc": {"arn:aws:ec2:r:1:vpc/vpc-1"}, "aws:ec2instancesourcevpc": {"vpc-1"}},
			map[string][]string{"ec2:vpc": {"arn:aws:ec2:r:1:vpc/vpc-2", ""}, "aws:ec2instancesourcevpc": {"vpc-2", ""}},
		})
	}
	for _, action := range []string{"Attach", "Detach", "Delete"} {
		own.action, attachment.action = "ec2:"+action+"NetworkInterface", "ec2:"+action+"NetworkInterface"
		if list = append(list, own); action != "Delete" {
			list = append(list, attachment)
		}
	}
	for _, action := range []string{"ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses", "ec2:ModifyNetworkInterfaceAttribute"} {
		own.action = action
		list = append(list, own)
	}
	return list
}

func ofController() []conditioned {
	return []conditioned{
		{
			"controller-policy.json", "ec2:DeleteNetworkInterface", eni,
			map[string][]string{resourceTag + managedTag: {"trunkline"}, resourceTag + clusterTag: {"prod"}, "aws:principaltag/" + clusterTag: {"prod"}},
			map[string][]string{resourceTag + managedTag: {"other", ""}, resourceTag + clusterTag: {"test", ""}, "aws:principaltag/" + clusterTag: {"test", ""}},
		},
		{
			"controller-policy.json", "ec2:CreateTags", eni,
			map[string][]string{requestTag + instanceTag: {"i-1"}, "aws:tagkeys": {instanceTag}},
			map[string][]string{
				requestTag + instanceTag: {""}, resourceTag + instanceTag: {"i-1", "i-2"},
				"ec2:createaction": {"CreateNetworkInterface"}, "aws:tagkeys": {managedTag},
			},
		},
	}
}

// The conditions overlap, so a scenario of one stolen credential does not notice that
// another condition is missing: here each alone makes the difference.
func TestEachConditionOfTheShippedPoliciesDeniesAlone(t *testing.T) {
	for _, c := range append(onNode(), ofController()...) {
		p := shipped(t, c.policy)
		request := iam.Request{Action: c.action, Resource: c.resource, Keys: c.keys}
		if got := p.Decide(request); got != iam.Allow {
			t.Errorf("%s on %s with %v: %s, want allow", c.action, c.resource, c.keys, got)
		}
		for key, values := range c.denied {
			for _, value := range values {
				request.Keys = maps.Clone(c.keys)
				if request.Keys[key] = []string{value}; value == "" {
					delete(request.Keys, key)
				}
				if got := p.Decide(request); got != iam.NoMatch {
					t.Errorf("%s on %s with %s=%q: %s, want no match", c.action, c.resource, key, value, got)
				}
			}
		}
	}
}
