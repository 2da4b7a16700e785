package crds

import (
	"slices"
	"testing"
)

const policies = deploy + "/components/securitygrouppolicy/vpcresources.k8s.aws_securitygrouppolicies.yaml"

func policy(rest string) string {
	return `{"apiVersion":"vpcresources.k8s.aws/v1beta1","kind":"SecurityGroupPolicy","metadata":{"name":"p","namespace":"shop"},` + rest + `}`
}

// AWS's definition has one constraint besides the types: a list of groups that is given has one at
// least. It had at most five until pull request 583 of aws/amazon-vpc-resource-controller-k8s, and
// no webhook of AWS's reads policies. What it accepts must be accepted, and no more.
func TestASpecIsAcceptedExactlyIfAWSsDefinitionAcceptsIt(t *testing.T) {
	judge(t, policies, []verdict{
		{name: "pod selector", object: policy(`"spec":{"podSelector":{"matchLabels":{"role":"db"}},"securityGroups":{"groupIds":["sg-0123456789abcdef0"]}}`)},
		{name: "service account selector with expressions", object: policy(`"spec":{"serviceAccountSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["x"]}]},"securityGroups":{"groupIds":["sg-1"]}}`)},
		{name: "both selectors, both empty", object: policy(`"spec":{"podSelector":{},"serviceAccountSelector":{},"securityGroups":{"groupIds":["sg-1"]}}`)},
		{name: "neither selector", object: policy(`"spec":{"securityGroups":{"groupIds":["sg-1"]}}`)},
		{name: "no groups", object: policy(`"spec":{"podSelector":{},"securityGroups":{}}`)},
		{name: "no spec", object: policy(`"status":{"matchedPods":0,"appliedPods":0,"refusedPods":0}`)},
		{name: "twenty groups", object: policy(`"spec":{"securityGroups":{"groupIds":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17","18","19","20"]}}`)},
		{name: "a group named twice, and one that is no id", object: policy(`"spec":{"securityGroups":{"groupIds":["sg-1","sg-1","default",""]}}`)},
		{name: "an operator that selectors do not have", object: policy(`"spec":{"podSelector":{"matchExpressions":[{"key":"a","operator":"Near"}]}}`)},
		{name: "an empty list of groups", object: policy(`"spec":{"podSelector":{},"securityGroups":{"groupIds":[]}}`), refused: "should have at least 1 items"},
		{name: "an expression without a key", object: policy(`"spec":{"podSelector":{"matchExpressions":[{"operator":"Exists"}]}}`), refused: "key: Required"},
		{name: "an expression without an operator", object: policy(`"spec":{"podSelector":{"matchExpressions":[{"key":"a"}]}}`), refused: "operator: Required"},
		{name: "a group that is a number", object: policy(`"spec":{"securityGroups":{"groupIds":[1]}}`), refused: "must be of type string"},
		{name: "a selector that is a list", object: policy(`"spec":{"podSelector":[]}`), refused: "must be of type object"},
	})
}

func TestAStatusAddsUp(t *testing.T) {
	const condition = `"conditions":[{"type":"Applied","status":"False","reason":"UnknownGroup","message":"sg-1: no such group","lastTransitionTime":"2026-11-01T10:00:00Z"}]`
	judge(t, policies, []verdict{
		{name: "one pod of two applied, one refused", object: policy(`"status":{"observedGeneration":1,"matchedPods":2,"appliedPods":1,"refusedPods":1,"refused":[{"name":"web","reason":"UnknownGroup","message":"sg-1"}],` + condition + `}`)},
		{name: "more applied and refused than matched", object: policy(`"status":{"matchedPods":1,"appliedPods":1,"refusedPods":1}`), refused: "applied and refused pods are among the matched ones"},
		{name: "fewer than no pods", object: policy(`"status":{"matchedPods":0,"appliedPods":-1,"refusedPods":0}`), refused: "should be greater than or equal to 0"},
		{name: "a pod refused twice", object: policy(`"status":{"matchedPods":2,"appliedPods":0,"refusedPods":2,"refused":[{"name":"web","reason":"A"},{"name":"web","reason":"B"}]}`), refused: "Duplicate value"},
	})
}

// AWS's dead type has matchNames, which its definition does not have.
func TestFieldsThatTheDefinitionLacksArePruned(t *testing.T) {
	obj := object(t, policy(`"spec":{"serviceAccountSelector":{"matchNames":["web"],"matchLabels":{"a":"b"}}}`))
	if unknown := read(t, policies).pruned(obj); !slices.Equal(unknown, []string{"spec.serviceAccountSelector.matchNames"}) {
		t.Errorf("pruned %q", unknown)
	}
}
