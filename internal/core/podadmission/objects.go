package podadmission

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// The label of every object, by which they are found again. Objects without it are never changed.
const (
	OwnerLabel = "trunkline.dev/managed-by"
	Owner      = "trunkline-admission"
)

// Paths of the webhook's requests.
const (
	Path        = "/pods"
	AccountPath = "/serviceaccounts"
)

const (
	resource   = vpc.ResourcePodENI
	annotation = vpc.AnnotationPodENI

	// annotationName is the name of the policy for the annotation; those of namespaces have
	// prefix before their own.
	annotationName = "trunkline-pod-eni"
	prefix         = "trunkline-security-groups."

	// webhookTimeout is short: a pod is refused within it if no replica answers, and is created
	// again by its controller.
	webhookTimeout = 5 // seconds
)

// Expressions about a pod. AWS's controller sums over containers and ignores init containers
// (pkg/utils of aws/amazon-vpc-resource-controller-k8s), and so is the request read.
const (
	usesPodNetwork = "!object.spec.?hostNetwork.orValue(false)"
	requested      = "object.spec.containers.exists(c, quantity(string(c.?resources.?limits[?'" + resource + "'].orValue('0'))).isGreaterThan(quantity('0')))"
)

// mutation adds the resource to the first container, as AWS's controller does.
const mutation = `(has(object.spec.containers[0].resources) ? [] : [JSONPatch{op: 'add', path: '/spec/containers/0/resources', value: {}}]) +
(has(object.spec.containers[0].resources) && has(object.spec.containers[0].resources.limits) ? [] : [JSONPatch{op: 'add', path: '/spec/containers/0/resources/limits', value: {}}]) +
(has(object.spec.containers[0].resources) && has(object.spec.containers[0].resources.requests) ? [] : [JSONPatch{op: 'add', path: '/spec/containers/0/resources/requests', value: {}}]) +
[
  JSONPatch{op: 'add', path: '/spec/containers/0/resources/limits/' + jsonpatch.escapeKey('` + resource + `'), value: '1'},
  JSONPatch{op: 'add', path: '/spec/containers/0/resources/requests/' + jsonpatch.escapeKey('` + resource + `'), value: '1'}
]`

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{OwnerLabel: Owner}}
}

// creations matches new pods of one namespace.
func creations(namespace string) *admissionv1.MatchResources {
	m := matching(on(admissionv1.Create, "pods"))
	m.NamespaceSelector = only(namespace)
	return m
}

func only(namespace string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: []string{namespace},
	}}}
}

// matching has all defaults of the API server, so that what it stores equals what is compiled.
func matching(rules ...admissionv1.RuleWithOperations) *admissionv1.MatchResources {
	equivalent := admissionv1.Equivalent
	m := &admissionv1.MatchResources{MatchPolicy: &equivalent, NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}}
	for _, r := range rules {
		m.ResourceRules = append(m.ResourceRules, admissionv1.NamedRuleWithOperations{RuleWithOperations: r})
	}
	return m
}

func on(operation admissionv1.OperationType, resources ...string) admissionv1.RuleWithOperations {
	scope := admissionv1.NamespacedScope
	return admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{operation},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: resources, Scope: &scope},
	}
}

// conditions are true for a pod that lacks a branch and that an expression selects. They are match
// conditions and no part of the mutation or validation, because the API server evaluates them first:
// it refuses every pod that a MutatingAdmissionPolicy is to mutate until it has read its own schema.
func conditions(selected string) []admissionv1.MatchCondition {
	return []admissionv1.MatchCondition{
		{Name: "uses-the-pod-network", Expression: usesPodNetwork},
		{Name: "requests-no-branch", Expression: "!(" + requested + ")"},
		{Name: "is-selected", Expression: selected},
	}
}

func mutatingPolicy(r rules) admissionv1.MutatingAdmissionPolicy {
	fail := admissionv1.Fail
	return admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: meta(prefix + r.namespace),
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints: creations(r.namespace), FailurePolicy: &fail, ReinvocationPolicy: admissionv1.IfNeededReinvocationPolicy,
			MatchConditions: conditions(r.selected()),
			Mutations:       []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{Expression: mutation}}},
		},
	}
}

func mutatingBinding(r rules) admissionv1.MutatingAdmissionPolicyBinding {
	return admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: meta(prefix + r.namespace), Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: prefix + r.namespace},
	}
}

// requestPolicy refuses a selected pod that does not request a branch after all mutations.
func requestPolicy(r rules) admissionv1.ValidatingAdmissionPolicy {
	fail, forbidden := admissionv1.Fail, metav1.StatusReasonForbidden
	variables := make([]admissionv1.Variable, len(r.decided))
	for i, d := range r.decided {
		variables[i] = admissionv1.Variable{Name: variable(i), Expression: d.text}
	}
	return admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: meta(prefix + r.namespace),
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: creations(r.namespace), FailurePolicy: &fail,
			MatchConditions: conditions(r.selected()),
			Variables:       variables,
			Validations: []admissionv1.Validation{{
				Expression: "false", Reason: &forbidden,
				Message: fmt.Sprintf("a SecurityGroupPolicy of namespace %s selects the pod, and none of its containers requests %s", r.namespace, resource),
				MessageExpression: literal("the pod is selected by SecurityGroupPolicy ") + " + " + r.by() + " + " + literal(
					", and none of its containers requests "+resource+", which Trunkline adds: another admission plugin has removed it, or Trunkline could not add it. Create the pod again"),
			}},
		},
	}
}

// annotationPolicy guards the annotation. The expressions are those of podeni.AdmitCreate and
// podeni.AdmitUpdate. The API server copies the annotations of a Binding into the pod, and an update
// of the status may change them (pkg/registry/core/pod of kubernetes/kubernetes).
func annotationPolicy(writers []string) admissionv1.ValidatingAdmissionPolicy {
	fail, forbidden := admissionv1.Fail, metav1.StatusReasonForbidden
	key := literal(annotation)
	return admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: meta(annotationName),
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: matching(
				on(admissionv1.Create, "pods", "pods/binding", "bindings"),
				on(admissionv1.Update, "pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"),
			),
			Validations: []admissionv1.Validation{
				{
					Expression: fmt.Sprintf("request.operation != 'CREATE' || !(%s in object.metadata.?annotations.orValue({}))", key),
					Message:    podeni.ErrAtCreation.Error(), Reason: &forbidden,
				},
				{
					Expression: fmt.Sprintf("request.operation != 'UPDATE' || object.metadata.?annotations[?%s] == oldObject.metadata.?annotations[?%s] || request.userInfo.username in %s", key, key, list(writers)),
					Message:    podeni.ErrNotWriter.Error(), Reason: &forbidden,
				},
			},
		},
	}
}

// webhook asks about the pods that the policies of the namespace cannot decide on. It is also asked
// before a service account comes to be selected, so that this is refused while no replica runs: pods of
// the account would be decided on by its former labels.
func webhook(r rules, to Webhook) admissionv1.MutatingWebhookConfiguration {
	c := admissionv1.MutatingWebhookConfiguration{ObjectMeta: meta(prefix + r.namespace)}
	if ask := r.ask(); ask != "" {
		c.Webhooks = append(c.Webhooks, asked(r.namespace, "pods", Path, to, conditions(ask), admissionv1.Create))
	}
	if comes := r.comes(); comes != "" {
		c.Webhooks = append(c.Webhooks, asked(r.namespace, "serviceaccounts", AccountPath, to,
			[]admissionv1.MatchCondition{{Name: "comes-to-be-selected", Expression: comes}}, admissionv1.Create, admissionv1.Update))
	}
	return c
}

func asked(namespace, resources, path string, to Webhook, conditions []admissionv1.MatchCondition, operations ...admissionv1.OperationType) admissionv1.MutatingWebhook {
	fail, equivalent, none, again := admissionv1.Fail, admissionv1.Equivalent, admissionv1.SideEffectClassNone, admissionv1.IfNeededReinvocationPolicy
	timeout, port := int32(webhookTimeout), int32(443)
	rule := on(admissionv1.Create, resources)
	rule.Operations = operations
	return admissionv1.MutatingWebhook{
		Name: namespace + "." + resources + ".trunkline.dev",
		ClientConfig: admissionv1.WebhookClientConfig{
			Service:  &admissionv1.ServiceReference{Namespace: to.Namespace, Name: to.Service, Path: &path, Port: &port},
			CABundle: to.CABundle,
		},
		Rules:             []admissionv1.RuleWithOperations{rule},
		FailurePolicy:     &fail,
		MatchPolicy:       &equivalent,
		NamespaceSelector: only(namespace), ObjectSelector: &metav1.LabelSelector{},
		SideEffects: &none, TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"}, ReinvocationPolicy: &again,
		MatchConditions: conditions,
	}
}
