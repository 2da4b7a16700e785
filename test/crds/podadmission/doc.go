// Package podadmission judges what core/podadmission compiles by the API server's own admission
// code: the plugins MutatingAdmissionPolicy, MutatingAdmissionWebhook and ValidatingAdmissionPolicy,
// in the API server's order, with Trunkline's own webhook behind the second.
//
// It touches nothing but loopback ports.
package podadmission
