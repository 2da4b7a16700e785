package bench

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// kubelets are those of the nodes of a namespace's pods: they watch the pods, have a plugin set up
// each, and write its status. The pods are ready then.
type kubelets struct {
	*realCluster
	client    *kubernetes.Clientset
	namespace string
	// retries: the plugin fails while a pod has no annotation, as AWS's does, and is called again
	// after a pause. Trunkline's waits for it.
	retries bool

	mu      sync.Mutex
	created map[string]time.Time
	texts   map[string]string        // annotations
	took    map[string]time.Duration // from the request that creates the pod
	open    sync.WaitGroup
}

// startKubelets watches a namespace until the benchmark ends.
func startKubelets(c *realCluster, namespace string, retries bool) *kubelets {
	k := &kubelets{
		realCluster: c, client: c.client(0, 0, ""), namespace: namespace, retries: retries,
		created: map[string]time.Time{}, texts: map[string]string{}, took: map[string]time.Duration{},
	}
	factory := informers.NewSharedInformerFactoryWithOptions(k.client, 0, informers.WithNamespace(namespace))
	pods := factory.Core().V1().Pods().Informer()
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if p, ok := obj.(*corev1.Pod); ok {
				k.add(p)
			}
		},
		UpdateFunc: func(_, obj any) {
			if p, ok := obj.(*corev1.Pod); ok {
				k.see(p)
			}
		},
	}); err != nil {
		c.Fatal(err)
	}
	factory.StartWithContext(c.ctx)
	c.Cleanup(func() { c.end(); factory.Shutdown(); k.open.Wait() })
	c.until("the kubelets watch", pods.HasSynced)
	return k
}

func (k *kubelets) add(p *corev1.Pod) {
	k.see(p)
	if k.retries {
		k.open.Go(func() { k.retry(p.Name) })
	}
}

// see notes the annotation of a pod.
func (k *kubelets) see(p *corev1.Pod) {
	text := p.Annotations[vpc.AnnotationPodENI]
	k.mu.Lock()
	_, known := k.texts[p.Name]
	if text != "" {
		k.texts[p.Name] = text
	}
	k.mu.Unlock()
	if text != "" && !known && !k.retries {
		k.open.Go(func() { k.ready(p.Name) })
	}
}

// retry sets a pod up at the first of its tries at which it has an annotation.
func (k *kubelets) retry(name string) {
	for {
		k.mu.Lock()
		text := k.texts[name]
		k.mu.Unlock()
		if text != "" {
			k.ready(name)
			return
		}
		select {
		case <-time.After(k.size.pause + rand.N(k.size.jitter)):
		case <-k.ctx.Done():
			return
		}
	}
}

// ready writes the status of a pod that is set up.
func (k *kubelets) ready(name string) {
	body, err := json.Marshal(map[string]any{"status": map[string]any{
		"phase": corev1.PodRunning, "conditions": []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}})
	for done := false; err == nil && !done; {
		_, problem := k.client.CoreV1().Pods(k.namespace).Patch(k.ctx, name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
		if done = problem == nil; !done {
			k.Logf("status of pod %s is written again: %v", name, problem)
			err = k.ctx.Err()
		}
	}
	if err != nil {
		return // the benchmark ends
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.took[name] = time.Since(k.created[name])
}

// create creates the pods at their rate, round robin on the nodes. Each must request a branch, by its own
// spec or by admission.
func (k *kubelets) create(nodes []string, of func(name, node string) *corev1.Pod) {
	tick := time.NewTicker(time.Second / time.Duration(k.size.rate))
	defer tick.Stop()
	problems := make(chan error, k.size.pods)
	for i := range k.size.pods {
		<-tick.C
		name := fmt.Sprintf("pod-%04d", i)
		p := of(name, nodes[i%len(nodes)])
		k.mu.Lock()
		k.created[name] = time.Now()
		k.mu.Unlock()
		k.open.Go(func() {
			made, err := k.client.CoreV1().Pods(k.namespace).Create(k.ctx, p, metav1.CreateOptions{})
			for err != nil && k.ctx.Err() == nil && !apierrors.IsAlreadyExists(err) { // as the creators of pods do
				k.Logf("pod %s is created again: %v", name, err)
				made, err = k.client.CoreV1().Pods(k.namespace).Create(k.ctx, p, metav1.CreateOptions{})
			}
			if apierrors.IsAlreadyExists(err) {
				made, err = k.client.CoreV1().Pods(k.namespace).Get(k.ctx, name, metav1.GetOptions{})
			}
			if n := made.Spec.Containers; err == nil && n[0].Resources.Limits.Name(vpc.ResourcePodENI, "").Value() != 1 {
				err = fmt.Errorf("pod %s was admitted without a request for a branch", name)
			}
			problems <- err
		})
	}
	for range k.size.pods {
		if err := <-problems; err != nil {
			k.Fatal(err)
		}
	}
}

// seconds waits for all pods and returns the time of each.
func (k *kubelets) seconds(within time.Duration) (all []float64) {
	limit := time.Now().Add(within)
	for {
		k.mu.Lock()
		n := len(k.took)
		k.mu.Unlock()
		if n == k.size.pods {
			break
		}
		if time.Now().After(limit) {
			k.Fatalf("%s: %d of %d pods are ready after %s", k.namespace, n, k.size.pods, within)
		}
		k.wait(100 * time.Millisecond)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.took {
		all = append(all, d.Seconds())
	}
	return all
}

// check proves that each pod has the branch of its own at EC2, with its group.
func (k *kubelets) check(a *account, group string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	has := map[string]string{}
	for name, text := range k.texts {
		if wrong := a.wrong(text, group); wrong != "" {
			k.Fatalf("pod %s: %s", name, wrong)
		}
		if other, twice := has[text]; twice {
			k.Fatalf("pods %s and %s have the same branch: %s", name, other, text)
		}
		has[text] = name
	}
}
