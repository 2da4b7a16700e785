package conformance

import (
	"math/bits"
	"strings"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// Class is a reason why cyclonus and Trunkline differ.
type Class struct {
	Name  string
	Text  string // of Kubernetes, that decides
	Right string // who follows it
	// correction makes cyclonus follow the text. A difference is of the class if it is gone
	// with the correction.
	correction Correction
}

// Classes are all classes.
func Classes() []Class {
	return []Class{
		{
			Name:  "NotIn of a key that is absent",
			Text:  `k8s.io/apimachinery/pkg/labels, Requirement.Matches: "4. The operator is DoesNotExist or NotIn and Labels does not have the Requirement's key."`,
			Right: "Trunkline", correction: notIn,
		},
		{
			Name:  "empty value of a key that is absent",
			Text:  `k8s.io/apimachinery/pkg/apis/meta/v1, LabelSelector.matchLabels: "A single {key,value} in the matchLabels map is equivalent to an element of matchExpressions, […] the operator is "In", and the values array contains only "value"."`,
			Right: "Trunkline", correction: emptyValue,
		},
		{
			Name:  "a pod and itself",
			Text:  `kubernetes.io/docs/concepts/services-networking/network-policies: "Other pods that are allowed (exception: a pod cannot block access to itself)"; cyclonus has --ignore-loopback for it`,
			Right: "Trunkline", correction: ownAddress,
		},
		{
			Name:  "a pod and its node",
			Text:  `the same page: "IP blocks (exception: traffic to and from the node where a Pod is running is always allowed, regardless of the IP address of the Pod or the node)"; k8s.io/api/networking/v1, NetworkPolicySpec.Ingress: "OR if the traffic source is the pod's local node"`,
			Right: "Trunkline", correction: residentNode,
		},
		{
			Name:  "a port with several names",
			Text:  `k8s.io/api/networking/v1, NetworkPolicyPort.Port: "This can either be a numerical or named port on a pod."; cyclonus's Traffic has one name for a port`,
			Right: "Trunkline", correction: everyName,
		},
	}
}

// unclassified names a difference that no class explains.
const unclassified = "none"

// explain names the smallest set of classes of which the corrections make the oracle give an
// answer in a direction.
func explain(o *Oracle, f policy.Flow, d policy.Direction, want bool) string {
	classes := Classes()
	for size := 1; size <= len(classes); size++ {
		for set := 1; set < 1<<len(classes); set++ {
			if bits.OnesCount(uint(set)) != size {
				continue
			}
			var with Correction
			var names []string
			for i, c := range classes {
				if set&(1<<i) != 0 {
					with |= c.correction
					names = append(names, c.Name)
				}
			}
			if direction(o.Judge(f, with), d) == want {
				return strings.Join(names, " + ")
			}
		}
	}
	return unclassified
}

func direction(a Answer, d policy.Direction) bool {
	if d == policy.Egress {
		return a.Egress
	}
	return a.Ingress
}
