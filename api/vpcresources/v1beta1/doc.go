// Package v1beta1 is AWS's group vpcresources.k8s.aws/v1beta1: SecurityGroupPolicy, by which
// users give pods security groups of their own. Field names, short name and printer columns are
// AWS's, and the definition accepts and refuses the same specs, so that manifests move over
// unchanged. Source: aws/amazon-vpc-resource-controller-k8s, apis/vpcresources/v1beta1, after
// its pull request 583. AWS's type has no status; Trunkline's has one.
//
// Types only: core/securitygroup decides which pods a policy selects.
//
// +kubebuilder:object:generate=true
// +groupName=vpcresources.k8s.aws
package v1beta1

//go:generate go tool -modfile=../../../tools/go.mod controller-gen object crd paths=. output:crd:dir=../../../deploy/components/securitygrouppolicy
