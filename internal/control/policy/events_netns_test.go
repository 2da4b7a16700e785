//go:build netns

package policy

import (
	"slices"
	"sync"
	"testing"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

// events are what a controller reports; they implement Events.
type events struct {
	t            *testing.T
	mu           sync.Mutex
	list         []string
	*kube.Events // of policies
}

func (e *events) NodeWarning(reason, message string) { e.add("node", reason, message) }

// PodWarning names the pod by its UID too.
func (e *events) PodWarning(ref kube.PodRef, uid, reason, message string) {
	e.add(ref.String()+" "+uid, reason, message)
}

func (e *events) add(object, reason, message string) {
	e.t.Logf("event of %s: %s: %s", object, reason, message)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, object+": "+reason+": "+message)
}

func (e *events) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.list)
}

func (e *events) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.list)
}
