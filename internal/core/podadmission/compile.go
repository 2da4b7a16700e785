package podadmission

import (
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/trunkline/trunkline/internal/core/securitygroup"
)

// Input is what is compiled, read at one time.
type Input struct {
	Policies []securitygroup.Policy
	// Accounts of the namespaces that have policies with a serviceAccountSelector.
	Accounts []securitygroup.Account
}

// Config is what objects are compiled for.
type Config struct {
	// Excluded are the namespaces in which nothing is compiled: kube-system and Trunkline's own,
	// so that no policy and no webhook can keep the cluster or Trunkline from starting.
	Excluded []string
	// Writers are the users that may change the annotation.
	Writers []string
	// Mutates is whether the API server serves MutatingAdmissionPolicy v1.
	Mutates bool
	Webhook Webhook
}

// Webhook is how the API server reaches the webhook.
type Webhook struct {
	Namespace, Service string
	CABundle           []byte // PEM; without one no webhook is compiled
}

// Objects are what the API server is to have, each kind sorted by name.
type Objects struct {
	Mutating           []admissionv1.MutatingAdmissionPolicy
	MutatingBindings   []admissionv1.MutatingAdmissionPolicyBinding
	Validating         []admissionv1.ValidatingAdmissionPolicy
	ValidatingBindings []admissionv1.ValidatingAdmissionPolicyBinding
	Webhooks           []admissionv1.MutatingWebhookConfiguration
	// Why has a sentence for each policy that could not be compiled, and for each namespace in
	// which none is.
	Why []string
}

// Compile returns the objects for the policies. Policies that select no pod, as they are written,
// have none.
func Compile(in Input, cfg Config) Objects {
	var out Objects
	out.validate(annotationPolicy(cfg.Writers))
	known := map[string]accounts{}
	for _, a := range in.Accounts {
		known[a.Namespace] = append(known[a.Namespace], a)
	}
	set := securitygroup.Compile(in.Policies)
	for _, namespace := range set.Namespaces() {
		selections := set.Selections(namespace)
		switch {
		case len(selections) == 0:
		case slices.Contains(cfg.Excluded, namespace):
			out.Why = append(out.Why, fmt.Sprintf("namespace %s: admission is never changed here: pods that a SecurityGroupPolicy selects must request %s themselves, or their node refuses them", namespace, resource))
		default:
			out.add(compileRules(namespace, selections, known[namespace], cfg.Mutates), cfg)
		}
	}
	return out
}

func (o *Objects) add(r rules, cfg Config) {
	o.Why = append(o.Why, r.why...)
	if len(r.decided) > 0 {
		o.validate(requestPolicy(r))
		if cfg.Mutates {
			o.Mutating = append(o.Mutating, mutatingPolicy(r))
			o.MutatingBindings = append(o.MutatingBindings, mutatingBinding(r))
		}
	}
	if c := webhook(r, cfg.Webhook); len(c.Webhooks) > 0 && len(cfg.Webhook.CABundle) > 0 {
		o.Webhooks = append(o.Webhooks, c)
	}
}

// validate adds a policy and its binding.
func (o *Objects) validate(p admissionv1.ValidatingAdmissionPolicy) {
	o.Validating = append(o.Validating, p)
	o.ValidatingBindings = append(o.ValidatingBindings, admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: meta(p.Name), Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: p.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny, admissionv1.Audit},
		},
	})
}
