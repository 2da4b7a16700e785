package crds

import (
	"strings"
	"testing"
)

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

func TestALedgerKeepsAVLANToOneBranch(t *testing.T) {
	ledger := func(vlans string, branches ...string) string {
		return cninode(`"status":{"trunkline":{"instanceID":"i-0123456789abcdef0","trunk":{"phase":"Ready","eniID":"eni-0123456789abcdef0"},"lastVLAN":2,"vlans":[` + vlans + `],"branches":[` + strings.Join(branches, ",") + `]}}`)
	}
	const (
		vlans  = `{"vlanID":1,"owner":"t1"},{"vlanID":2,"owner":"t9","until":"2026-11-01T10:00:00.000000Z"}`
		common = `"since":"2026-11-01T10:00:00.000000Z","changed":"2026-11-01T10:00:00.000000Z","subnetID":"subnet-0123456789abcdef0"`
		pod    = `"pod":{"uid":"u","namespace":"shop","name":"web"}`
		bound  = `{"id":"t1","vlanID":1,"phase":"Bound",` + common + `,` + pod + `,"securityGroups":["sg-0123456789abcdef0"],"eniID":"eni-0123456789abcdef1","associationID":"trunk-assoc-1","mac":"02:00:00:00:00:01","ipv4":"10.0.1.9","subnetCIDR":"10.0.1.0/24"}`
		call   = `"call":{"id":"t2","kind":"CreateBranch","tries":1,"began":"2026-11-01T10:00:00.000000Z","at":"2026-11-01T10:00:00.000000Z","subnetID":"subnet-0123456789abcdef0","securityGroups":["sg-0123456789abcdef0"]}`
		intent = `{"id":"t2","phase":"Creating",` + common + `,` + pod + `,` + call + `}`
	)
	judge(t, cninodes, []verdict{
		{name: "a bound branch and an intent", object: ledger(vlans, bound, intent)},
		{name: "a VLAN with two owners", object: ledger(strings.Replace(vlans, `"vlanID":2`, `"vlanID":1`, 1), bound, intent), refused: "Duplicate value"},
		{name: "VLAN 0", object: ledger(strings.Replace(vlans, `"vlanID":2`, `"vlanID":0`, 1), bound, intent), refused: "vlanID"},
		{name: "VLAN 121", object: ledger(vlans, strings.Replace(bound, `"vlanID":1`, `"vlanID":121`, 1)), refused: "vlanID"},
		{name: "two branches of one id", object: ledger(vlans, bound, strings.Replace(intent, `"id":"t2","phase"`, `"id":"t1","phase"`, 1)), refused: "Duplicate value"},
		{name: "an unknown phase", object: ledger(vlans, strings.Replace(intent, "Creating", "Renaming", 1)), refused: "Unsupported value"},
		{name: "a created branch without its interface", object: ledger(vlans, strings.Replace(intent, "Creating", "Associating", 1)), refused: "eniID is required once the branch is created"},
		{name: "a branch in creation without its call", object: ledger(vlans, strings.Replace(intent, ","+call, "", 1)), refused: "a branch in creation has its call"},
		{name: "a bound branch without an association", object: ledger(vlans, strings.Replace(bound, `"associationID":"trunk-assoc-1",`, "", 1)), refused: "associationID is required"},
		{name: "a bound branch without a pod", object: ledger(vlans, strings.Replace(bound, pod+",", "", 1)), refused: "a bound branch has a pod"},
		{name: "a bound branch without a VLAN", object: ledger(vlans, strings.Replace(bound, `"vlanID":1,`, "", 1)), refused: "a bound branch has a VLAN"},
		{name: "a group that is no id", object: ledger(vlans, strings.Replace(bound, "sg-0123456789abcdef0", "default", 1)), refused: "securityGroups"},
		{name: "a trunk without its interface", object: strings.Replace(ledger(vlans), `,"eniID":"eni-0123456789abcdef0"`, "", 1), refused: "eniID is required once the trunk is created"},
		{name: "an instance that is none", object: strings.Replace(ledger(vlans), "i-0123456789abcdef0", "node", 1), refused: "instanceID"},
	})
}
