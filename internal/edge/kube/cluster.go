package kube

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
)

// Options of a Cluster.
type Options struct {
	Client *Client
	// NodeName is the agent's node; its pods are watched.
	NodeName string
	// SnapshotPath is the file that the cache is saved to; empty saves none. Its
	// content at start is used until the caches have synced.
	SnapshotPath string
	// Changed is called after each change of the cache; it must not block. May be nil.
	Changed func()
	Log     *slog.Logger
}

// Cluster is the cache of what one node needs of its cluster. Its methods may be called
// from any goroutine and before Run.
type Cluster struct {
	opts    Options
	pods    cache.SharedIndexInformer
	node    cache.SharedIndexInformer
	brakes  cache.SharedIndexInformer
	events  *Events
	network networkWriter
	dirty   chan struct{} // capacity 1: the snapshot on disk is outdated

	mu   sync.Mutex
	seed Snapshot // used until the caches have synced
}

// NewCluster prepares the informers and reads the snapshot. A snapshot that cannot be
// read is logged and not used: the API server is authoritative.
func NewCluster(o Options) *Cluster {
	c := &Cluster{opts: o, dirty: make(chan struct{}, 1)}
	core := o.Client.Core.CoreV1().RESTClient()
	c.pods = informer(core, "pods", &corev1.Pod{}, fields.OneTermEqualSelector("spec.nodeName", o.NodeName), stripPod)
	c.node = informer(core, "nodes", &corev1.Node{}, fields.OneTermEqualSelector("metadata.name", o.NodeName), stripNode)
	c.brakes = informer(o.Client.Trunkline, trunkline.ResourceBrakes, &trunkline.Brake{}, fields.Everything(), nil)
	for _, inf := range c.informers() {
		mustNotRun(inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { c.changed() },
			UpdateFunc: func(_, _ any) { c.changed() },
			DeleteFunc: func(any) { c.changed() },
		}))
		mustNotRun(nil, inf.SetWatchErrorHandlerWithContext(c.watchFailed))
	}
	c.events = NewEvents(o.Client.Core, o.NodeName)
	c.network = networkWriter{client: o.Client.Trunkline, node: o.NodeName}
	if o.SnapshotPath != "" {
		seed, err := LoadSnapshot(o.SnapshotPath)
		if name := seed.Node.Name; err == nil && name != "" && name != o.NodeName {
			seed, err = Snapshot{}, fmt.Errorf("it is of the node %s: the disk is an image of that one's", name)
		}
		if err != nil {
			o.Log.Warn("cluster snapshot not used", "path", o.SnapshotPath, "err", err)
		}
		c.seed = seed
	}
	return c
}

// Confirm is called once the instance of the node is known. A snapshot of another instance is
// not used: a new node from a disk image can have the name and the address of an earlier one.
func (c *Cluster) Confirm(instance string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	provider := c.seed.Node.ProviderID // such as aws:///us-west-2a/i-0123
	if of := provider[strings.LastIndex(provider, "/")+1:]; strings.HasPrefix(of, "i-") && of != instance {
		c.opts.Log.Warn("cluster snapshot not used", "path", c.opts.SnapshotPath,
			"err", fmt.Errorf("it is of the instance %s, and this is %s: the disk is an image of that one's", of, instance))
		c.seed = Snapshot{}
	}
}

// mustNotRun panics on the only error of informer set-up: the informer already runs.
func mustNotRun(_ cache.ResourceEventHandlerRegistration, err error) {
	if err != nil {
		panic(fmt.Sprintf("kube: informer set up after its start: %v", err))
	}
}

// informer returns an informer over one resource, without discovery and resync; strip
// drops fields before an object is stored.
func informer(c rest.Interface, resource string, kind runtime.Object, sel fields.Selector, strip cache.TransformFunc) cache.SharedIndexInformer {
	lw := cache.NewListWatchFromClient(c, resource, metav1.NamespaceAll, sel)
	inf := cache.NewSharedIndexInformer(lw, kind, 0, cache.Indexers{})
	if strip != nil {
		mustNotRun(nil, inf.SetTransform(strip))
	}
	return inf
}

func (c *Cluster) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.pods, c.node, c.brakes}
}

func (c *Cluster) watchFailed(_ context.Context, r *cache.Reflector, err error) {
	c.opts.Log.Warn("watch interrupted, retrying", "resource", r.TypeDescription(), "err", err)
}

func (c *Cluster) changed() {
	select {
	case c.dirty <- struct{}{}:
	default:
	}
	if c.opts.Changed != nil {
		c.opts.Changed()
	}
}

// Run watches until ctx ends, then returns nil. It retries without a limit while the
// server does not respond.
func (c *Cluster) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, inf := range c.informers() {
		wg.Go(func() { inf.RunWithContext(ctx) })
	}
	wg.Go(func() { c.events.Run(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), c.pods.HasSynced, c.node.HasSynced) {
		c.mu.Lock()
		// Brakes sync separately; until then that of the snapshot applies.
		c.seed = Snapshot{Freeze: c.seed.Freeze, FreezeReason: c.seed.FreezeReason}
		c.mu.Unlock()
		c.changed()
		c.saveSnapshots(ctx)
	}
	<-ctx.Done()
	return nil
}

// Synced reports whether pods and node come from the API server rather than from
// the snapshot. It stays true when the server becomes unreachable later.
func (c *Cluster) Synced() bool { return c.pods.HasSynced() && c.node.HasSynced() }

// PodsKnown reports whether Pods are those of the API server, or of a snapshot of this node;
// otherwise nothing is known of them.
func (c *Cluster) PodsKnown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods.HasSynced() || c.seed.Node.Name != ""
}

// Pods returns the pods bound to the node, sorted by name.
func (c *Cluster) Pods() []Pod {
	if !c.pods.HasSynced() {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Clone(c.seed.Pods)
	}
	var out []Pod
	for _, obj := range c.pods.GetStore().List() {
		if p, ok := obj.(*corev1.Pod); ok {
			out = append(out, podFrom(p))
		}
	}
	slices.SortFunc(out, func(a, b Pod) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// Pod returns one pod: from the cache, or from the API server if the cache has no pod
// of that name and uid (empty: any). A static pod is represented by its mirror pod,
// which is also found by the uid that the runtime has for the static pod.
//
// The error is ErrNoPod if the server has no such pod, or one with another uid;
// ErrNoMirror if that pod is static; ErrUnavailable if the server does not respond.
func (c *Cluster) Pod(ctx context.Context, ref PodRef, uid string) (Pod, error) {
	if p, ok := c.known(ref); ok && p.named(uid) {
		return p, nil
	}
	none := ErrNoPod
	if isStatic(uid) {
		none = ErrNoMirror
	}
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	live, err := c.opts.Client.Core.CoreV1().Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Pod{}, fmt.Errorf("pod %s: %w", ref, none)
	case err != nil:
		return Pod{}, fmt.Errorf("get pod %s: %w: %w", ref, ErrUnavailable, err)
	}
	p := podFrom(live)
	if !p.named(uid) {
		return Pod{}, fmt.Errorf("pod %s has uid %s, not %s: %w", ref, p.UID, uid, none)
	}
	return p, nil
}

func (c *Cluster) known(ref PodRef) (Pod, bool) {
	if c.pods.HasSynced() {
		obj, ok, err := c.pods.GetStore().GetByKey(ref.String())
		if err != nil || !ok {
			return Pod{}, false
		}
		p, ok := obj.(*corev1.Pod)
		if !ok {
			return Pod{}, false
		}
		return podFrom(p), true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.seed.Pods {
		if p.PodRef == ref {
			return p, true
		}
	}
	return Pod{}, false
}

// Node returns the agent's own Node, and false if neither the cache nor the snapshot
// has it.
func (c *Cluster) Node() (Node, bool) {
	if !c.node.HasSynced() {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.seed.Node, c.seed.Node.Name != ""
	}
	obj, ok, err := c.node.GetStore().GetByKey(c.opts.NodeName)
	if err != nil || !ok {
		return Node{}, false
	}
	n, ok := obj.(*corev1.Node)
	if !ok {
		return Node{}, false
	}
	return nodeFrom(n), true
}

// Freeze returns the strictest brake that selects the node, with its reason. Until
// Brakes have synced it is that of the snapshot, so that an agent that starts during an
// incident applies it at once.
func (c *Cluster) Freeze() (trunkline.Freeze, string) {
	if !c.brakes.HasSynced() {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.seed.Freeze, c.seed.FreezeReason
	}
	var all []trunkline.Brake
	for _, obj := range c.brakes.GetStore().List() {
		if b, ok := obj.(*trunkline.Brake); ok {
			all = append(all, *b)
		}
	}
	return Strictest(all, c.opts.NodeName)
}

// Strictest returns the strictest of brakes for node (empty: the controller), with the
// reasons of all that are in force there.
func Strictest(brakes []trunkline.Brake, node string) (trunkline.Freeze, string) {
	slices.SortFunc(brakes, func(a, b trunkline.Brake) int { return strings.Compare(a.Name, b.Name) })
	freeze, reasons := trunkline.FreezeNone, []string{}
	for i := range brakes {
		f := brakes[i].For(node)
		if f.Stricter(trunkline.FreezeNone) != trunkline.FreezeNone {
			reasons = append(reasons, brakes[i].Name+": "+brakes[i].Spec.Reason)
		}
		freeze = f.Stricter(freeze)
	}
	return freeze, strings.Join(reasons, "; ")
}

// Events returns the writer of the node's events.
func (c *Cluster) Events() *Events { return c.events }
