package podadmission

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// Outcome is what the webhook answers, as a label of metrics.
type Outcome string

// Outcomes.
const (
	Mutated     Outcome = "mutated"      // the pod is selected, and now requests a branch
	Requested   Outcome = "requested"    // the pod is selected, and requests one by itself
	NotSelected Outcome = "not_selected" // the pod is admitted as it is
	Refused     Outcome = "refused"      // the pod is selected, or may be, and cannot have its groups
	Forged      Outcome = "forged"       // the pod has the annotation of a controller
	NotReady    Outcome = "not_ready"    // policies have not been read: the client must try again
)

// Answer is that to one request.
type Answer struct {
	Outcome Outcome
	Why     string
	Patch   []byte // JSON patch (RFC 6902); only of Mutated
	Warning string // for the user; "" is none
}

// Allowed reports whether the pod is created.
func (a Answer) Allowed() bool {
	return a.Outcome == Mutated || a.Outcome == Requested || a.Outcome == NotSelected
}

// Review decides on a new pod of a namespace. set has all policies of the namespace, and account is
// the pod's, nil if there is none of its name.
//
// A pod that no policy selects and that requests a branch is admitted, as by AWS's webhook: its
// branch has the groups of the instance's primary interface, as the pod itself would without one.
func Review(set *securitygroup.Set, namespace string, pod *corev1.Pod, account *securitygroup.Account) Answer {
	if err := podeni.AdmitCreate(pod.Annotations); err != nil {
		return Answer{Outcome: Forged, Why: err.Error()}
	}
	p := securitygroup.FromPod(pod)
	p.Namespace, p.Ended = namespace, false // the API server discards the status of a new pod
	d := set.Select(p, account)
	requests := Requests(pod.Spec)
	switch {
	case d.Verdict == securitygroup.Refused:
		return Answer{Outcome: Refused, Why: d.Why}
	case d.Verdict == securitygroup.NotSelected && requests && !p.HostNetwork:
		return Answer{Outcome: NotSelected, Why: d.Why, Warning: fmt.Sprintf(
			"the pod requests %s and no SecurityGroupPolicy selects it: Trunkline's controller makes no branch for it, and it does not start; AWS's gives it the security groups of its node", resource)}
	case d.Verdict == securitygroup.NotSelected:
		return Answer{Outcome: NotSelected, Why: d.Why}
	case requests:
		return Answer{Outcome: Requested, Why: d.Why}
	case len(pod.Spec.Containers) == 0:
		return Answer{Outcome: Refused, Why: "the pod is selected and has no container that could request " + resource}
	}
	return Answer{Outcome: Mutated, Why: d.Why, Patch: patch(pod.Spec.Containers[0].Resources)}
}

// Requests reports whether a container of a pod requests a branch; its limit is the request, as of every extended
// resource. All are read: another webhook may have put its own before the one that Trunkline changed. Init
// containers are not: AWS's controller makes no branch for their requests (getAggregateResources in
// controllers/core/pod_controller.go of aws/amazon-vpc-resource-controller-k8s), although the scheduler counts
// them, and so do the compiled policies of admission.
func Requests(spec corev1.PodSpec) bool {
	for _, c := range spec.Containers {
		if q := c.Resources.Limits[resource]; q.Sign() > 0 {
			return true
		}
	}
	return false
}

// Unread is the answer while policies or accounts have not been read. It never admits: which pods
// are selected is not known.
func Unread(what string) Answer {
	return Answer{Outcome: NotReady, Why: what + " not read from the API server yet: try again"}
}

// step is one operation of a JSON patch.
type step struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch adds the resource to the first container. A pod of the API always has the field resources,
// which is a struct that is encoded also if it is empty.
func patch(has corev1.ResourceRequirements) []byte {
	var steps []step
	for _, field := range []struct {
		name string
		list corev1.ResourceList
	}{{"limits", has.Limits}, {"requests", has.Requests}} {
		path := "/spec/containers/0/resources/" + field.name
		if field.list == nil {
			steps = append(steps, step{"add", path, map[string]string{resource: "1"}})
			continue
		}
		steps = append(steps, step{"add", path + "/" + escaped, "1"})
	}
	text, err := json.Marshal(steps)
	if err != nil {
		panic(err) // of strings
	}
	return text
}

// escaped is the resource's name as a part of a path (RFC 6901).
const escaped = "vpc.amazonaws.com~1pod-eni"

// Status is a refusal for the client. A client tries again after 503; a controller does after every
// refusal.
func (a Answer) Status() *metav1.Status {
	if a.Allowed() {
		return nil
	}
	s := &metav1.Status{Status: metav1.StatusFailure, Message: a.Why, Code: 403, Reason: metav1.StatusReasonForbidden}
	if a.Outcome == NotReady {
		s.Code, s.Reason = 503, metav1.StatusReasonServiceUnavailable
	}
	return s
}
