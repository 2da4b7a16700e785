// Package resourcecontroller is a model of AWS's VPC resource controller, which in every EKS cluster
// runs outside the nodes, in AWS's account: it makes a trunk for each node that asks for one, and a
// branch for each pod that requests one, by the same calls, tags, descriptions, annotation, events,
// CNINode and capacity, in the same order, at the same rates and with the same retries.
//
// It decides by AWS's rules, written a second time: it shares no decision with Trunkline's own
// controller. A pod that requests a branch and that no policy selects gets one with the groups of its
// instance, as on AWS. Not modelled: AWS's webhooks, which add the request to pods and protect the
// annotation (Trunkline's admission does both here), Windows, Fargate, custom networking, IPv6, the
// status of CNINodes and the collection of leaked interfaces.
//
// Source: aws/amazon-vpc-resource-controller-k8s, main.go, controllers, pkg/node/manager, pkg/worker,
// pkg/provider/branch and pkg/aws/ec2/api. The lab, tests and benchmarks run it. It uses EC2 and the
// API server by their wire formats, and nothing else.
package resourcecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// User is the name by which AWS's controller calls the API server of an EKS cluster.
const User = "eks:vpc-resource-controller"

// Rates, workers and times of AWS's controller. Source: main.go, pkg/worker and
// pkg/provider/branch/provider.go; client-go has the default queue of its workers, with a first pause
// of 5 ms that doubles.
const (
	ec2Rate, ec2Burst = 12, 18 // of each client of EC2, a second
	apiRate, apiBurst = 20, 30 // requests to the API server, a second
	podWorkers        = 30
	nodeWorkers       = 10
	podRetries        = 5
	deleteEvery       = 30 * time.Second // between two passes over a node's queue of deletions
	nodeDeleteAfter   = time.Minute      // until the branches of a deleted node are deleted
	nodeNotReady      = time.Second      // until a pod of a node without a trunk is retried
	maxVLAN           = 120
)

// Times that operators of AWS's controller choose, or that are fixed there.
const (
	// DefaultCoolDown is the shortest that AWS's accepts; its default is 60 s.
	DefaultCoolDown = 30 * time.Second
	// DefaultResync is when a pod that was given up after its retries is retried.
	DefaultResync = 30 * time.Minute
)

// Options of New.
type Options struct {
	// API is the access to the API server.
	API *rest.Config
	// User is the client of EC2 with the cluster's role, and Service that of AWS's service, which
	// makes the trunk calls. Without Service, User makes all calls, and all share its rate.
	User    aws.Config
	Service *aws.Config
	// Cluster is its name, as in tags; Account that of the interfaces.
	Cluster, Account string
	// Limits are those of an instance type.
	Limits func(instanceType string) vpc.Limits
	// Serves reports whether the controller is that of a node; nil is all.
	Serves func(node string) bool
	// Unasked: nodes get trunks without the feature of their CNINode or the label, by which Trunkline's
	// controller would serve them too, in a benchmark that runs both.
	Unasked bool
	// CoolDown is how long a branch is kept after its pod; 0 is DefaultCoolDown. Resync is how often
	// all pods are processed again; 0 is DefaultResync.
	CoolDown, Resync time.Duration
	Log              *slog.Logger
}

// Controller is the model. Run runs it, once.
type Controller struct {
	options Options
	client  *kubernetes.Clientset
	objects dynamic.Interface
	ec2     calls
	events  record.EventRecorder

	core     informers.SharedInformerFactory
	custom   dynamicinformer.DynamicSharedInformerFactory
	cniNodes cache.SharedIndexInformer
	policies *policies

	nodeQueue workqueue.TypedRateLimitingInterface[string]
	jobs      workqueue.TypedRateLimitingInterface[job]

	mu     sync.Mutex
	trunks map[string]*trunk // by node
}

// New returns a controller.
func New(o Options) (*Controller, error) {
	if o.CoolDown == 0 {
		o.CoolDown = DefaultCoolDown
	}
	if o.Resync == 0 {
		o.Resync = DefaultResync
	}
	if o.Serves == nil {
		o.Serves = func(string) bool { return true }
	}
	access := rest.CopyConfig(o.API)
	access.QPS, access.Burst, access.UserAgent = apiRate, apiBurst, "vpc-resource-controller-model"
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	objects, err := dynamic.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	c := &Controller{
		options: o, client: client, objects: objects, ec2: newCalls(o), trunks: map[string]*trunk{},
		core: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithCustomResyncConfig(map[metav1.Object]time.Duration{&corev1.Pod{}: o.Resync})), custom: dynamicinformer.NewDynamicSharedInformerFactory(objects, 0),
		nodeQueue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		jobs:      workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[job]()),
	}
	c.cniNodes = c.custom.ForResource(cniNodeResource()).Informer()
	c.policies = &policies{client: client, accounts: c.core.Core().V1().ServiceAccounts().Lister(), informer: c.custom.ForResource(policyResource())}
	if err := c.watch(); err != nil {
		return nil, err
	}
	return c, nil
}

// watch enters nodes and pods in their queues when their objects change.
func (c *Controller) watch() error {
	node := func(obj any) {
		if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil && c.options.Serves(name) {
			c.nodeQueue.Add(name)
		}
	}
	nodes := cache.ResourceEventHandlerFuncs{AddFunc: node, UpdateFunc: func(_, obj any) { node(obj) }, DeleteFunc: node}
	pods := cache.ResourceEventHandlerFuncs{
		AddFunc: c.podChanged, UpdateFunc: func(_, obj any) { c.podChanged(obj) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if p, ok := obj.(*corev1.Pod); ok {
				c.jobs.Add(job{do: release, node: p.Spec.NodeName, uid: p.UID})
			}
		},
	}
	_, err := c.core.Core().V1().Nodes().Informer().AddEventHandler(nodes)
	_, ofCNINodes := c.cniNodes.AddEventHandler(nodes)
	_, ofPods := c.core.Core().V1().Pods().Informer().AddEventHandler(pods)
	c.core.Core().V1().ServiceAccounts().Informer()
	return errors.Join(err, ofCNINodes, ofPods)
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.client.CoreV1().Events("")})
	defer broadcaster.Shutdown()
	c.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "vpc-resource-controller"})
	c.core.StartWithContext(ctx)
	defer c.core.Shutdown()
	var running sync.WaitGroup
	defer running.Wait()
	defer c.nodeQueue.ShutDown()
	defer c.jobs.ShutDown()
	running.Go(func() { c.cniNodes.RunWithContext(ctx) })
	c.core.WaitForCacheSync(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), c.cniNodes.HasSynced) {
		return
	}
	c.policies.start = func() { running.Go(func() { c.policies.informer.Informer().RunWithContext(ctx) }) }
	for range nodeWorkers {
		running.Go(func() {
			work(ctx, c.nodeQueue, func(ctx context.Context, node string) { c.nodeChanged(ctx, node) })
		})
	}
	for range podWorkers {
		running.Go(func() { work(ctx, c.jobs, c.do) })
	}
	<-ctx.Done()
}

// work does what is in a queue until it is shut down.
func work[T comparable](ctx context.Context, queue workqueue.TypedRateLimitingInterface[T], do func(context.Context, T)) {
	for {
		item, ended := queue.Get()
		if ended {
			return
		}
		if ctx.Err() == nil {
			do(ctx, item)
		}
		queue.Done(item)
	}
}

func (c *Controller) trunkOf(node string) *trunk {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trunks[node]
}

func (c *Controller) setTrunk(node string, t *trunk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t == nil {
		delete(c.trunks, node)
		return
	}
	c.trunks[node] = t
}

// cniNode is the object of a node from the watch; nil if there is none.
func (c *Controller) cniNode(name string) *unstructured.Unstructured {
	obj, found, err := c.cniNodes.GetStore().GetByKey(name)
	if err != nil || !found {
		return nil
	}
	n, _ := obj.(*unstructured.Unstructured)
	return n
}
