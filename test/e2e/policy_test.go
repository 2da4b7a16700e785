//go:build lab

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/trunkline/trunkline/lab/workload"
)

// onlyFriends isolates the pod policy-web, and allows policy-friend to reach its port.
const onlyFriends = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-friends, namespace: default}
spec:
  podSelector: {matchLabels: {run: policy-web}}
  ingress:
    - from:
        - podSelector: {matchLabels: {run: policy-friend}}
      ports:
        - {port: 8080}
`

// policiesAreEnforced has connections by a pod's address and by a Service, which kube-proxy
// translates, from pods of the same node and of another.
func policiesAreEnforced(t *testing.T, l lab) {
	nodes := l.nodes(t)
	web := nodes[0].startPod(t, "policy-web").String() + ":8080"
	nodes[0].startPod(t, "policy-near")
	nodes[1].startPod(t, "policy-far")
	nodes[1].startPod(t, "policy-friend")
	l.kubectl(t, "expose", "pod", "policy-web", "--port=80", "--target-port=8080")
	t.Cleanup(func() { l.remove(t, "service/policy-web") })
	service := strings.TrimSpace(l.kubectl(t, "get", "service", "policy-web", "-o", "jsonpath={.spec.clusterIP}")) + ":80"
	strangers, targets := []string{"policy-near", "policy-far"}, []string{web, service}

	allReach := func(what string, pods ...string) {
		t.Helper()
		for _, pod := range pods {
			for _, target := range targets {
				eventually(t, time.Minute, what+": "+pod+" reaches "+target, func(t testing.TB) error { return l.dials(t, pod, target) })
			}
		}
	}
	noneReaches := func(what string, pods ...string) {
		t.Helper()
		for _, pod := range pods {
			for _, target := range targets {
				eventually(t, time.Minute, what+": "+pod+" does not reach "+target, func(t testing.TB) error {
					if err := l.dials(t, pod, target); err == nil {
						return notYet("it does")
					}
					return nil
				})
			}
		}
	}
	isolated := func(what string, pods ...string) { // at once
		t.Helper()
		for _, pod := range pods {
			for _, target := range targets {
				if err := l.dials(t, pod, target); err == nil {
					t.Errorf("%s: %s reaches %s", what, pod, target)
				}
			}
		}
	}
	allReach("without a policy", "policy-near", "policy-far", "policy-friend")

	l.apply(t, onlyFriends)
	t.Cleanup(func() { l.remove(t, "networkpolicy/only-friends") })
	noneReaches("under the policy", strangers...)
	allReach("under the policy", "policy-friend")
	eventually(t, 2*time.Minute, "status says that the policy is enforced", func(t testing.TB) error {
		if out := (product{l}).run(t, time.Minute, "status").String(); !strings.Contains(out, "✓ Policies    enforced: 1 of NetworkPolicy") {
			return notYet("%s", out)
		}
		return nil
	})
	nodes[0].startPod(t, "policy-late") // is added under a policy
	isolated("a pod that was added under the policy", "policy-late")
	nodes[0].stopAgent(t)
	isolated("while the agent is replaced", strangers...)
	allReach("while the agent is replaced", "policy-friend")

	l.remove(t, "networkpolicy/only-friends")
	allReach("after the policy was deleted", "policy-near", "policy-far", "policy-friend", "policy-late")
}

// dials has a pod make one connection, and returns why it has no answer.
func (l lab) dials(t testing.TB, pod, target string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r := l.try(ctx, "kubectl", "exec", pod, "--", "/workload", "dial", "http", target, "--timeout=3s")
	var got workload.Result
	if err := json.Unmarshal([]byte(strings.TrimSpace(r.stdout)), &got); err != nil {
		t.Fatalf("dial %s from %s: %v\n%s", target, pod, r.err, r) // not an answer of the workload
	}
	if !got.OK {
		return fmt.Errorf("dial %s from %s: %s: %s", target, pod, got.Kind, got.Error)
	}
	return nil
}
