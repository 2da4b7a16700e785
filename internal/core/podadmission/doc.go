// Package podadmission decides what the API server does with new pods and with the annotation
// vpc.amazonaws.com/pod-eni, so that a pod that a SecurityGroupPolicy selects requests a branch.
//
// Compile turns policies into objects that the API server evaluates by itself: for each namespace a
// MutatingAdmissionPolicy that has selected pods request the resource vpc.amazonaws.com/pod-eni, a
// ValidatingAdmissionPolicy that refuses a selected pod without it, and a webhook for the pods that
// the two cannot decide on, those of service accounts that did not exist yet. Annotation guards the
// annotation. Review is the webhook's answer, from the same policies.
//
// Each object concerns one namespace, and none that is excluded: a policy never affects a pod of
// another namespace, and without one nothing is asked. Which pods a policy selects is decided by
// core/securitygroup, which the compiled expressions must agree with (test/crds/podadmission).
//
// Pure: values in, values out. control/podadmission writes the objects and answers requests by it.
package podadmission
