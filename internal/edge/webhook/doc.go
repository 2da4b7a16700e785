// Package webhook serves admission reviews of pods by HTTPS, and makes the certificates for it.
//
// Server decodes an AdmissionReview v1, has a function decide, and encodes the answer; it bounds the
// size and time of requests and takes another certificate without a restart. Certificates are the
// authority and serving certificate of the Service, and their renewal before they end.
//
// It acts and never decides on a pod. It may touch the socket that it is given. app/admission
// constructs it; the decisions are those of control/podadmission.
package webhook
