//go:build netns

package policy

import (
	"sync"
	"testing"
)

// events are what a controller reports; they implement Events.
type events struct {
	t    *testing.T
	mu   sync.Mutex
	list []string
}

func (e *events) NodeWarning(reason, message string) { e.add("node", reason, message) }

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
