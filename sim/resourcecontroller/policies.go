package resourcecontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

func policyResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1beta1", Resource: "securitygrouppolicies"}
}

// policies are the SecurityGroupPolicies of the cluster. As in AWS's, the watch of them begins with
// the first pod, once discovery has shown their definition; until then no policy selects a pod. That
// "discovery lacks it" and "there is none" are one is the weakness of AWS's.
type policies struct {
	client   *kubernetes.Clientset
	accounts listers.ServiceAccountLister
	informer informers.GenericInformer
	start    func() // the informer

	mu      sync.Mutex
	started bool
}

// policy is what is read of one.
type policy struct {
	Spec struct {
		PodSelector            *metav1.LabelSelector `json:"podSelector"`
		ServiceAccountSelector *metav1.LabelSelector `json:"serviceAccountSelector"`
		SecurityGroups         struct {
			Groups []string `json:"groupIds"`
		} `json:"securityGroups"`
	} `json:"spec"`
}

// watched begins the watch, if discovery shows the definition, and reports whether there is one.
func (s *policies) watched(ctx context.Context) (bool, error) {
	s.mu.Lock()
	if !s.started {
		known, err := s.discovered(ctx)
		if err != nil || !known {
			s.mu.Unlock()
			return false, err
		}
		s.started = true
		s.start()
	}
	s.mu.Unlock()
	if !cache.WaitForCacheSync(ctx.Done(), s.informer.Informer().HasSynced) {
		return false, ctx.Err()
	}
	return true, nil
}

// discovered reports whether discovery shows the definition of the policies. A document that lacks
// it and one that cannot be found are the same here, as to the mapper of controller-runtime 0.17 and
// later; other errors are errors.
func (s *policies) discovered(ctx context.Context) (bool, error) {
	all, resources, stale, err := s.client.GroupsAndMaybeResourcesWithContext(ctx)
	if err != nil {
		return false, fmt.Errorf("discover groups: %w", err)
	}
	of := policyResource()
	if _, failed := stale[of.GroupVersion()]; failed {
		return false, nil
	}
	if !slices.ContainsFunc(all.Groups, func(g metav1.APIGroup) bool { return g.Name == of.Group }) {
		return false, nil
	}
	list := resources[of.GroupVersion()]
	if resources == nil { // discovery is not aggregated
		if list, err = s.client.ServerResourcesForGroupVersionWithContext(ctx, of.GroupVersion().String()); apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("discover %s: %w", of.GroupVersion(), err)
		}
	}
	return list != nil && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == of.Resource }), nil
}

// groupsOf are the groups of the policies of a pod's namespace that select it, each once. A policy
// without a selector or without groups, or with one that cannot be read, selects none; one with both
// selectors selects if both do. Source: filterPodSecurityGroups in pkg/utils/helper.go.
func (s *policies) groupsOf(ctx context.Context, pod *corev1.Pod) (groups []string, err error) {
	known, err := s.watched(ctx)
	if err != nil || !known {
		return nil, err
	}
	account, err := s.accounts.ServiceAccounts(pod.Namespace).Get(pod.Spec.ServiceAccountName)
	if err != nil {
		return nil, fmt.Errorf("service account of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	list, err := s.informer.Lister().ByNamespace(pod.Namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, obj := range list {
		object, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return nil, errors.New("a policy is no object")
		}
		var p policy
		if runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &p) != nil || !p.selects(pod.Labels, account.Labels) {
			continue
		}
		for _, g := range p.Spec.SecurityGroups.Groups {
			if !slices.Contains(groups, g) {
				groups = append(groups, g)
			}
		}
	}
	return groups, nil
}

// selects reports whether a policy selects a pod, by the labels of its account too.
func (p policy) selects(pod, account map[string]string) bool {
	byPod, byAccount := p.Spec.PodSelector, p.Spec.ServiceAccountSelector
	if byPod == nil && byAccount == nil {
		return false
	}
	return (byPod == nil || matches(byPod, pod)) && (byAccount == nil || matches(byAccount, account))
}

func matches(s *metav1.LabelSelector, set map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(set))
}
