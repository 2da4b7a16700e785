//go:build lab

package deploy_test

import (
	"os"
	"path/filepath"
	"testing"
)

// awsObjects are AWS's two definitions, as an EKS cluster has them, with an object each. That
// of ENIConfig keeps fields which its schema does not name.
// Source: aws/amazon-vpc-cni-k8s v1.23.1, config/master/aws-k8s-cni.yaml.
const awsObjects = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: eniconfigs.crd.k8s.amazonaws.com}
spec:
  group: crd.k8s.amazonaws.com
  scope: Cluster
  names: {kind: ENIConfig, plural: eniconfigs, singular: eniconfig}
  versions:
    - name: v1alpha1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: cninodes.vpcresources.k8s.aws}
spec:
  group: vpcresources.k8s.aws
  scope: Cluster
  names: {kind: CNINode, plural: cninodes, singular: cninode, shortNames: [cnd]}
  versions:
    - name: v1alpha1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const awsCustomObjects = `apiVersion: crd.k8s.amazonaws.com/v1alpha1
kind: ENIConfig
metadata: {name: us-west-2a}
spec: {subnet: subnet-1, securityGroups: [sg-1], ofAnotherVersion: kept}
---
apiVersion: vpcresources.k8s.aws/v1alpha1
kind: CNINode
metadata: {name: n1}
spec: {features: [{name: SecurityGroupsForPods}], ofAnotherVersion: kept}
`

// An operator applies the overlay, and deletes it to return to AWS's CNI. Other nodes' custom
// networking and AWS's VPC resource controller depend on these objects.
func TestApplyAndDeleteLeaveAWSsDefinitionsAndObjectsAsTheyAre(t *testing.T) {
	c := newEmptyCluster(t)
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c.kubectl(t, "apply", "--server-side", "--field-manager=eks", "-f", write("definitions.yaml", awsObjects))
	c.kubectl(t, "wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
	c.kubectl(t, "apply", "--server-side", "--field-manager=eks", "-f", write("objects.yaml", awsCustomObjects))
	state := func() string {
		return c.kubectl(t, "get", "-o", "jsonpath={range .items[*]}{.metadata.uid} {.metadata.generation} {.spec}{\"\\n\"}{end}",
			"crd/eniconfigs.crd.k8s.amazonaws.com", "crd/cninodes.vpcresources.k8s.aws", "eniconfig/us-west-2a", "cninode/n1")
	}
	before := state()
	for _, args := range [][]string{{"apply", "-k", "overlays/eks-migration"}, {"apply", "-k", "overlays/eks"}, {"delete", "--wait=false", "-k", "overlays/eks"}} {
		c.kubectl(t, args...)
		if after := state(); after != before {
			t.Fatalf("after kubectl %v:\n%s\nbefore:\n%s", args, after, before)
		}
	}
}
