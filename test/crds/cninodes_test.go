package crds

import "testing"

const cninodes = deploy + "/components/cninode/vpcresources.k8s.aws_cninodes.yaml"

func cninode(rest string) string {
	return `{"apiVersion":"vpcresources.k8s.aws/v1alpha1","kind":"CNINode","metadata":{"name":"n1"},` + rest + `}`
}

func TestACNINodeOfAWSIsAccepted(t *testing.T) {
	judge(t, cninodes, []verdict{
		{name: "features and tags", object: cninode(`"spec":{"features":[{"name":"SecurityGroupsForPods"},{"name":"CustomNetworking","value":"us-west-2a"}],"tags":{"a":"b"}}`)},
		{name: "a feature of a later version", object: cninode(`"spec":{"features":[{"name":"Later"}]}`)},
		{name: "a node of EKS Auto Mode", object: cninode(`"spec":{"managedBy":"eks-auto-mode"}`)},
		{name: "adopted by a manager", object: cninode(`"spec":{"managedBy":"eks-auto-mode"}`), before: cninode(`"spec":{}`)},
		{name: "an unknown manager", object: cninode(`"spec":{"managedBy":"other"}`), refused: "Unsupported value"},
		{name: "another manager", object: cninode(`"spec":{"managedBy":"eks-auto-mode"}`), before: cninode(`"spec":{"managedBy":"vpc-resource-controller"}`), refused: "managedBy is immutable once set"},
		{name: "the manager removed", object: cninode(`"spec":{}`), before: cninode(`"spec":{"managedBy":"eks-auto-mode"}`), refused: "managedBy cannot be removed once set"},
		{name: "AWS's record of the trunk", object: cninode(`"status":{"trunkInterface":{"id":"eni-1","branches":[{"id":"eni-2","vlanID":1,"securityGroups":["sg-1"],"ipv4CIDRs":["10.0.0.9/32"]}]}}`)},
	})
}

// Readers validate the record of Trunkline's controller: the API server keeps all of it.
func TestTheDefinitionHasNoSchemaOfTheRecord(t *testing.T) {
	record := func(text string) string { return cninode(`"status":{"trunkline":` + text + `}`) }
	judge(t, cninodes, []verdict{
		{name: "a bound branch", object: record(`{"instanceID":"i-0123456789abcdef0","vlans":[{"vlanID":1,"owner":"t1"}],"branches":[{"id":"t1","vlanID":1,"phase":"Bound"}]}`)},
		{name: "fields of a later version", object: record(`{"later":{"fields":[1]}}`)},
		{name: "no object", object: record(`"none"`), refused: "must be of type object"},
	})
}
