package v1alpha1_test

import (
	"encoding/json"
	"testing"

	"github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
)

// A client that reads, changes and writes an object must keep every field of AWS's.
func TestNodesOfAWSAreEncodedByteForByteAsTheyWere(t *testing.T) {
	const head = `{"kind":"CNINode","apiVersion":"vpcresources.k8s.aws/v1alpha1","metadata":{"name":"ip-10-0-1-5.us-west-2.compute.internal","labels":{"kubernetes.io/os":"linux"},"finalizers":["networking.k8s.aws/resource-cleanup"]},`
	for name, rest := range map[string]string{
		"features and tags": `"spec":{"features":[{"name":"SecurityGroupsForPods"},{"name":"CustomNetworking","value":"us-west-2a"}],"tags":{"cluster.k8s.amazonaws.com/name":"c","node.k8s.amazonaws.com/instance_id":"i-0123456789abcdef0"}},"status":{}}`,
		"a feature of a later version, and a node of EKS Auto Mode": `"spec":{"features":[{"name":"Later"}],"managedBy":"eks-auto-mode"},"status":{}}`,
		"the trunk and branches that AWS's controller recorded":     `"spec":{},"status":{"trunkInterface":{"id":"eni-0123456789abcdef0","macAddress":"02:00:00:00:00:01","deviceIndex":3,"subnetID":"subnet-0123456789abcdef0","branches":[{"id":"eni-0123456789abcdef1","vlanID":1,"associationID":"trunk-assoc-0123456789abcdef0","macAddress":"02:00:00:00:00:02","subnetCIDR":"10.0.1.0/24","subnetV6CIDR":"2600:1f14::/64","securityGroups":["sg-0123456789abcdef0"],"ipv4CIDRs":["10.0.1.9/32"],"ipv6CIDRs":["2600:1f14::9/128"]}]}}}`,
		"what AWS's controller restarts from":                       `"spec":{},"status":{"nodeNetworkState":{"instanceID":"i-0123456789abcdef0","instanceType":"m5.large","subnetID":"subnet-0123456789abcdef0","subnetCIDRBlock":"10.0.1.0/24","subnetV6CIDRBlock":"2600:1f14::/64","primaryNetworkInterfaceSecurityGroups":["sg-0123456789abcdef0"],"connectionTracking":{"tcpEstablishedTimeout":300,"udpStreamTimeout":180,"udpTimeout":30}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			var n v1alpha1.CNINode
			if err := json.Unmarshal([]byte(head+rest), &n); err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(n.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != head+rest {
				t.Errorf("encoded\n%s\nwant\n%s", got, head+rest)
			}
		})
	}
}
