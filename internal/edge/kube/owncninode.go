package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// agentOwner is the field manager of the agent's writes to objects that others own.
const agentOwner = "trunkline-agent"

// OwnCNINodeOptions of OwnCNINode.
type OwnCNINodeOptions struct {
	Client *Client
	// NodeName is the agent's node; the CNINode has its name.
	NodeName string
	// SnapshotPath is the file that the object is saved to; its content is used until the API server
	// has listed it.
	SnapshotPath string
	// Changed is called after each change of the object; it must not block. May be nil.
	Changed func()
	Log     *slog.Logger
}

// OwnCNINode reflects the CNINode of the agent's node: the record of the controller that owns the
// node's branches. Its methods may be called from any goroutine and before Run.
type OwnCNINode struct {
	opts  OwnCNINodeOptions
	dirty chan struct{} // capacity 1: the snapshot on disk is outdated

	mu     sync.Mutex
	listed bool
	object *vpcresources.CNINode // nil: there is none, or none is known
	seed   *vpcresources.CNINode // of a snapshot, until the object is listed
}

// NewOwnCNINode reads the snapshot. One that cannot be read is logged and not used.
func NewOwnCNINode(o OwnCNINodeOptions) *OwnCNINode {
	c := &OwnCNINode{opts: o, dirty: make(chan struct{}, 1)}
	text, err := os.ReadFile(o.SnapshotPath)
	if errors.Is(err, fs.ErrNotExist) {
		return c
	}
	var saved vpcresources.CNINode
	if err == nil {
		err = json.Unmarshal(text, &saved)
	}
	if err == nil && saved.Name != o.NodeName {
		err = fmt.Errorf("it is of the node %q: the disk is an image of that one's", saved.Name)
	}
	if err != nil {
		o.Log.Warn("snapshot of the CNINode not used", "path", o.SnapshotPath, "err", err)
		return c
	}
	c.seed = &saved
	return c
}

// Object is the CNINode, nil if there is none. known is false if it comes neither from the API server
// nor from a snapshot. It must not be modified.
func (c *OwnCNINode) Object() (object *vpcresources.CNINode, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listed {
		return c.object, true
	}
	return c.seed, c.seed != nil
}

// Live reads the CNINode from the API server. The watch may be behind by what another watch has shown.
func (c *OwnCNINode) Live(ctx context.Context) (*vpcresources.CNINode, error) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	live := &vpcresources.CNINode{}
	if err := c.opts.Client.VPC.Get().Resource(vpcresources.ResourceCNINodes).Name(c.opts.NodeName).Do(ctx).Into(live); err != nil {
		return nil, fmt.Errorf("get CNINode %s: %w", c.opts.NodeName, err)
	}
	return live, nil
}

// AddFeature enters a feature in the CNINode's spec, as AWS's agent does: by a merge patch of the
// version that was read, in which a feature of the same name with another value is replaced. Nothing
// is written if it is there, or if EKS Auto Mode owns the object.
//
// Source: AddFeatureToCNINode in pkg/ipamd/ipamd.go of aws/amazon-vpc-cni-k8s.
func (c *OwnCNINode) AddFeature(ctx context.Context, f vpcresources.Feature) error {
	live, err := c.Live(ctx)
	if err != nil {
		return err
	}
	if live.Spec.ManagedBy == vpcresources.ManagedByEKSAutoMode || slices.Contains(live.Spec.Features, f) {
		return nil
	}
	list := slices.DeleteFunc(slices.Clone(live.Spec.Features), func(have vpcresources.Feature) bool { return have.Name == f.Name })
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": live.ResourceVersion}, "spec": map[string]any{"features": append(list, f)},
	})
	if err != nil {
		return fmt.Errorf("encode the features of CNINode %s: %w", live.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, reportWithin)
	defer cancel()
	err = c.opts.Client.VPC.Patch(types.MergePatchType).Resource(vpcresources.ResourceCNINodes).Name(live.Name).
		Param("fieldManager", agentOwner).Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("add the feature %s to CNINode %s: %w", f.Name, live.Name, err)
	}
	return nil
}

// Run watches until ctx ends, then returns nil. It retries without a limit.
func (c *OwnCNINode) Run(ctx context.Context) error {
	lw := cache.NewListWatchFromClient(c.opts.Client.VPC, vpcresources.ResourceCNINodes, metav1.NamespaceAll, fields.OneTermEqualSelector("metadata.name", c.opts.NodeName))
	set := func(object *vpcresources.CNINode) {
		c.mu.Lock()
		c.object = object
		c.mu.Unlock()
		c.changed()
	}
	store := rows[*vpcresources.CNINode]{
		convert: func(obj any) (*vpcresources.CNINode, error) {
			n, ok := obj.(*vpcresources.CNINode)
			if !ok {
				return nil, fmt.Errorf("%T is no CNINode", obj)
			}
			n = n.DeepCopy()
			n.ManagedFields = nil
			return n, nil
		},
		set:    set,
		remove: func(string, string) { set(nil) },
		replace: func(list []*vpcresources.CNINode) {
			c.mu.Lock()
			c.listed, c.object = true, nil
			for _, n := range list {
				c.object = n
			}
			c.mu.Unlock()
			c.changed()
		},
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		runReflector(ctx, reflector(vpcresources.ResourceCNINodes, &vpcresources.CNINode{}, lw, store), c.opts.Log, nil)
	})
	wg.Go(func() { c.save(ctx) })
	wg.Wait()
	return nil
}

func (c *OwnCNINode) changed() {
	signal(c.dirty)
	if c.opts.Changed != nil {
		c.opts.Changed()
	}
}

// save writes the snapshot after changes, at most once per saveEvery.
func (c *OwnCNINode) save(ctx context.Context) {
	pause := time.NewTicker(saveEvery)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.dirty:
		}
		if err := c.write(); err != nil {
			c.opts.Log.Warn("snapshot of the CNINode not saved", "path", c.opts.SnapshotPath, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// write saves the object; without one, there is none to save, and an older one must not be used.
func (c *OwnCNINode) write() error {
	object, _ := c.Object()
	if object == nil {
		if err := os.Remove(c.opts.SnapshotPath); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return errors.Join(atomicfile.RemoveLeftovers(c.opts.SnapshotPath), atomicfile.Write(c.opts.SnapshotPath, text, 0o600))
}
