package cni

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// sandboxes are the ADDs in flight, by the interface of a pod that they are for. The runtime makes a sandbox
// only after the pod's older one has ended. After a restart of the runtime the plugin of the older one may
// run still: its ADD must neither take an address nor remove what the newer one has.
type sandboxes struct {
	mu     sync.Mutex
	newest map[podInterface]*sandboxADD
}

// podInterface is an interface of a pod, of whichever sandbox.
type podInterface struct{ namespace, name, ifName string }

type sandboxADD struct {
	container string
	end       context.CancelCauseFunc
}

var (
	// errNewerSandbox ends the ADD of a sandbox that the runtime does not use any more.
	errNewerSandbox = errors.New("the runtime does not use this sandbox any more")
	// errRemoved ends an ADD of which the endpoint was removed before its link was made.
	errRemoved = errors.New("by the ADD of a newer sandbox of the pod, or because the pod has ended")
)

// enter ends the ADD in flight of an older sandbox of the same pod. The context that it returns ends
// once a newer one comes, before that one is in a table. The caller calls leave at the end of its ADD.
func (s *sandboxes) enter(ctx context.Context, key endpoint.Key, pod endpoint.Pod) (of context.Context, leave func()) {
	ctx, end := context.WithCancelCause(ctx)
	if pod.Name == "" { // another runtime than Kubernetes'
		return ctx, func() { end(nil) }
	}
	at, add := podInterface{pod.Namespace, pod.Name, key.IfName}, &sandboxADD{key.ContainerID, end}
	s.mu.Lock()
	defer s.mu.Unlock()
	if older := s.newest[at]; older != nil && older.container != add.container {
		older.end(errNewerSandbox)
	}
	if s.newest == nil {
		s.newest = map[podInterface]*sandboxADD{}
	}
	s.newest[at] = add
	return ctx, func() {
		end(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.newest[at] == add {
			delete(s.newest, at)
		}
	}
}

// endOlder removes what older sandboxes of the pod have: their DELs have not come. A sandbox in the table
// is no newer one while ctx lasts.
func (a *addition) endOlder(ctx context.Context, link string, removing bool) error {
	for _, old := range a.c.State.EndpointsOf(link) {
		if old.Key == a.e.Key || old.Stage == endpoint.Removing && !removing {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := a.c.detach(ctx, old); err != nil {
			return fmt.Errorf("remove the older link %s: %w", link, err)
		}
	}
	return nil
}

// current reports whether the endpoint is in the table as the ADD has put it there.
func (a *addition) current() bool {
	e, ok := a.c.State.Endpoint(a.e.Key)
	return ok && e.ID == a.e.ID && e.Generation == a.e.Generation
}
