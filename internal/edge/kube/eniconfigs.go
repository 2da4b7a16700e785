package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	eniconfig "github.com/trunkline/trunkline/api/eniconfig/v1alpha1"
)

var (
	// ErrENIConfigsUnread means that the ENIConfigs were not read yet.
	ErrENIConfigsUnread = errors.New("the ENIConfigs were not read yet")
	// ErrENIConfigsUnreadable means that they were not, and the last try has failed.
	ErrENIConfigsUnreadable = errors.New("the ENIConfigs cannot be read")
)

// eniConfigs is a cache that is read once the first node with custom networking needs it: a cluster
// without AWS's CNI has no definition of ENIConfig, and watches of it would fail all the time.
type eniConfigs struct {
	informer cache.SharedIndexInformer
	changed  func()
	log      *slog.Logger
	wanted   chan struct{} // capacity 1

	mu  sync.Mutex
	why error // of the last failure to read
}

func newENIConfigs(c rest.Interface, changed func(), log *slog.Logger) *eniConfigs {
	e := &eniConfigs{
		informer: informer(c, eniconfig.ResourceENIConfigs, &eniconfig.ENIConfig{}, fields.Everything(), stripManaged),
		changed:  changed, log: log, wanted: make(chan struct{}, 1),
	}
	mustNotRun(nil, e.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { e.failed(err) }))
	mustNotRun(e.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(_, _ any) { changed() }, DeleteFunc: func(any) { changed() },
	}))
	return e
}

// failed keeps why ENIConfigs cannot be read. The reflector retries, in up to half a minute.
func (e *eniConfigs) failed(err error) {
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("the API server has no definition %s.%s: %w", eniconfig.ResourceENIConfigs, eniconfig.Group, err)
	}
	e.mu.Lock()
	said := e.why != nil && e.why.Error() == err.Error()
	e.why = err
	e.mu.Unlock()
	if !said {
		e.log.Warn("ENIConfigs not read, retrying", "err", err)
		e.changed()
	}
}

// run watches from the first call of get on, until ctx ends.
func (e *eniConfigs) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-e.wanted:
	}
	var wg sync.WaitGroup
	wg.Go(func() { e.informer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), e.informer.HasSynced) {
		e.changed() // also where there is none
	}
	wg.Wait()
}

// get returns an ENIConfig; exists is false if there is none of the name. The error is
// ErrENIConfigsUnread or wraps ErrENIConfigsUnreadable.
func (e *eniConfigs) get(name string) (found *eniconfig.ENIConfig, exists bool, _ error) {
	if e.informer.HasSynced() {
		found, exists = object[*eniconfig.ENIConfig](e.informer, name)
		return found, exists, nil
	}
	select {
	case e.wanted <- struct{}{}:
	default:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.why != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrENIConfigsUnreadable, e.why)
	}
	return nil, false, ErrENIConfigsUnread
}

// ENIConfig is one ENIConfig; exists is false if there is none of the name. The first call has them
// read; until they are, the error is ErrENIConfigsUnread or wraps ErrENIConfigsUnreadable.
func (b *BranchObjects) ENIConfig(name string) (found *eniconfig.ENIConfig, exists bool, err error) {
	return b.custom.get(name)
}
