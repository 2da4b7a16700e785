package podadmission

import (
	"context"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"

	"github.com/trunkline/trunkline/internal/core/podadmission"
)

// client is a client of objects in memory, with Kubernetes' own schema.
type client struct{ *fake.Clientset }

func (c client) Discovery() discovery.DiscoveryInterfaces {
	return withSchema{c.Clientset.Discovery()}
}

type withSchema struct{ discovery.DiscoveryInterfaces }

func (withSchema) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }

// chain is the admission of an API server.
type chain struct {
	mutating []admission.MutationInterface // in their order
	last     admission.ValidationInterface
	objects  admission.ObjectInterfaces
}

// resolver finds every service at one address.
type resolver struct{ at string }

func (r resolver) ResolveEndpoint(string, string, int32) (*url.URL, error) {
	return &url.URL{Scheme: "https", Host: r.at}, nil
}

// start runs the plugins with the objects in force, and every service at one address.
func start(t *testing.T, in podadmission.Objects, namespaces []string, service string) *chain {
	t.Helper()
	var objects []runtime.Object
	add := func(o runtime.Object) { objects = append(objects, o) }
	for _, name := range namespaces {
		add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}})
	}
	each(in, add)
	core := client{fake.NewClientset(objects...)}
	factory := informers.NewSharedInformerFactory(core, 0)
	first, err := mutating.NewPlugin(nil)
	if err != nil {
		t.Fatal(err)
	}
	first.SetEnabled(true)
	second, err := mutatingwebhook.NewMutatingWebhook(nil)
	if err != nil {
		t.Fatal(err)
	}
	second.SetServiceResolver(resolver{service})
	last, err := validating.NewPlugin(nil)
	if err != nil {
		t.Fatal(err)
	}
	last.SetEnabled(true)
	mapper := meta.NewDefaultRESTMapper(nil)
	with := initializer.New(core, dynamicfake.NewSimpleDynamicClient(scheme.Scheme), factory, authorizerfactory.NewAlwaysAllowAuthorizer(),
		utilfeature.DefaultFeatureGate, compatibility.DefaultBuildEffectiveVersion(), t.Context().Done(), mapper)
	for _, p := range []admission.Interface{first, second, last} {
		with.Initialize(p)
	}
	first.SetRESTMapper(mapper)
	last.SetRESTMapper(mapper)
	for _, p := range []admission.InitializationValidator{first, second, last} {
		if err := p.ValidateInitialization(); err != nil {
			t.Fatal(err)
		}
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	for !first.WaitForReady() || !last.WaitForReady() { // each waits for some seconds while policies are compiled
		if t.Context().Err() != nil {
			t.Fatal("the plugins are not ready")
		}
	}
	return &chain{
		mutating: []admission.MutationInterface{first, second}, last: last,
		objects: admission.NewObjectInterfacesFromScheme(scheme.Scheme),
	}
}

// each calls a function with every object.
func each(in podadmission.Objects, add func(runtime.Object)) {
	for i := range in.Mutating {
		add(&in.Mutating[i])
	}
	for i := range in.MutatingBindings {
		add(&in.MutatingBindings[i])
	}
	for i := range in.Validating {
		add(&in.Validating[i])
	}
	for i := range in.ValidatingBindings {
		add(&in.ValidatingBindings[i])
	}
	for i := range in.Webhooks {
		add(&in.Webhooks[i])
	}
}

// request is one request to the API server.
type request struct {
	object, before  runtime.Object
	kind            string
	resource, sub   string
	namespace, user string
	operation       admission.Operation
}

func (c *chain) admit(ctx context.Context, r request) error {
	var options runtime.Object = &metav1.CreateOptions{}
	if r.operation == admission.Update {
		options = &metav1.UpdateOptions{}
	}
	attributes := admission.NewAttributesRecord(r.object, r.before, schema.GroupVersionKind{Version: "v1", Kind: r.kind}, r.namespace, "name",
		schema.GroupVersionResource{Version: "v1", Resource: r.resource}, r.sub, r.operation, options, false, &user.DefaultInfo{Name: r.user})
	// As in the API server, mutating plugins run again once if one asks for it.
	run := func(a admission.Attributes) error {
		for _, p := range c.mutating {
			if !p.Handles(r.operation) {
				continue
			}
			if err := p.Admit(ctx, a, c.objects); err != nil {
				return err
			}
		}
		return nil
	}
	if err := run(attributes); err != nil {
		return err
	}
	if again := attributes.GetReinvocationContext(); again.ShouldReinvoke() {
		again.SetIsReinvoke()
		if err := run(attributes); err != nil {
			return err
		}
	}
	return c.last.Validate(ctx, attributes, c.objects)
}

// create admits a pod, and returns it as it would be stored.
func (c *chain) create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	pod = pod.DeepCopy()
	err := c.admit(ctx, request{object: pod, kind: "Pod", resource: "pods", namespace: pod.Namespace, user: "alice", operation: admission.Create})
	return pod, err
}
