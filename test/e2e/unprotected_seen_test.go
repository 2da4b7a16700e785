//go:build lab

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/workload"
)

// seen is what the observer has counted.
func (u *unprotected) seen(t testing.TB) map[string]workload.Observed {
	t.Helper()
	out := map[string]workload.Observed{}
	decode(t, u.kubectl(t, "get", "--raw", "/api/v1/namespaces/"+observerNamespace+"/pods/observer:8080/proxy/"), &out)
	return out
}

// arrived waits until packets of all pods have arrived at the port that they may send to. Of pods
// that no policy selects, it waits for those as well that groups of policies deny: the observer
// then counts such packets at that time.
func (u *unprotected) arrived(t testing.TB, limit time.Duration, what string, names []string) {
	t.Helper()
	eventually(t, limit, what, func(t testing.TB) error {
		seen := u.seen(t)
		for _, name := range names {
			if o := seen[name]; !runs(name, o) {
				return notYet("the observer has of %s %+v; %s", name, o, u.why(t, name))
			}
		}
		return nil
	})
}

// runs reports whether what the observer has of a pod is that of one that runs.
func runs(name string, o workload.Observed) bool {
	return o.Allowed > 0 && (isGuarded(name) || o.Denied > 0 && o.Called > 0)
}

// unstarted are the pods of a list that do not run.
func (u *unprotected) unstarted(t testing.TB, names []string) []string {
	t.Helper()
	seen := u.seen(t)
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return runs(name, seen[name]) })
}

// why is what the cluster says of a pod that does not run.
func (u *unprotected) why(t testing.TB, name string) string {
	return u.try(t.Context(), "kubectl", "-n", guardedNamespace, "get", "events", "--field-selector", "involvedObject.name="+name, "-o", `jsonpath={range .items[-3:]}{.reason}: {.message}{"\n"}{end}`).String()
}

// violations are the guarded pods of which a packet arrived that their groups deny, or that
// answered a call that they deny.
func (u *unprotected) violations(t testing.TB, allCases bool) (list []string) {
	t.Helper()
	for name, o := range u.seen(t) {
		o.Denied, o.Called = o.Denied-u.allowed[name].Denied, o.Called-u.allowed[name].Called
		if isGuarded(name) && o.Denied+o.Called > 0 && (allCases || strings.HasPrefix(name, fmt.Sprintf("c%d-", u.number))) {
			list = append(list, fmt.Sprintf("%s: %d denied and %d called, first %s at %s", name, o.Denied, o.Called, o.First, o.At.Format(time.StampMilli)))
		}
	}
	slices.Sort(list)
	return list
}

// allow takes what was counted of pods until now as allowed: no policy selected them.
func (u *unprotected) allow(t testing.TB, names []string) {
	seen := u.seen(t)
	u.allowed = map[string]workload.Observed{}
	for _, name := range names {
		u.allowed[name] = seen[name]
	}
}
