//go:build lab

package e2e

import (
	"fmt"
	"testing"
	"time"
)

// breaker runs a break.
type breaker struct{ *unprotected }

// unprotectedBreak takes mechanisms away, after which packets arrive, or pods that no policy selects do not
// start.
type unprotectedBreak struct {
	name   string
	bricks bool // pods that no policy selects do not start
	do     func(*testing.T, breaker)
	create func(*testing.T, *unprotected) // nil: the ordinary pods of a case
	kinds  []string                       // of the guarded pods
	heal   func(*testing.T, breaker)
}

// unprotectedBreaks are those of a mode, in an order: the last ones leave the lab without the
// mechanisms. Each case is one of those that a break is of.
func unprotectedBreaks(mode string) []unprotectedBreak {
	wrong := unprotectedBreak{
		name: "the groups of the nodes, of the cases of EC2", kinds: []string{byLabel, byAccount},
		do:   func(t *testing.T, u breaker) { u.apply(t, u.policiesOf(groupNamed(t, u.lab, "nodes"))) },
		heal: func(t *testing.T, u breaker) { u.apply(t, u.policies()) },
	}
	bricked := unprotectedBreak{
		name: "a webhook for all pods, without an endpoint", bricks: true,
		do: func(t *testing.T, u breaker) { u.apply(t, webhookForAll); u.refusing(t, true) },
		heal: func(t *testing.T, u breaker) {
			u.kubectl(t, "delete", "validatingwebhookconfiguration", "test-for-all-pods")
			u.refusing(t, false)
		},
	}
	if mode == ebpf {
		return []unprotectedBreak{bricked, wrong, {
			name: "nodes do not enforce groups, of all others", kinds: []string{byLabel, byAccount},
			do: func(t *testing.T, u breaker) { u.uncheck(t) },
		}}
	}
	return []unprotectedBreak{
		bricked,
		wrong,
		{
			name: "without the node's check, of the cases after admission", kinds: []string{byLabel},
			do: func(t *testing.T, u breaker) { u.uncheck(t) }, create: labelsAfterAdmission,
		},
		{
			name: "without admission and the node's check, of all others", kinds: []string{byLabel, byAccount},
			do: func(t *testing.T, u breaker) { u.unadmit(t); u.admitted(t, false) },
		},
	}
}

// webhookForAll is what no admission of security groups may be: it stands in the way of pods that no policy
// selects.
const webhookForAll = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: test-for-all-pods}
webhooks:
  - name: all.test.trunkline.dev
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Fail
    timeoutSeconds: 2
    rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ` + guardedNamespace + `}}
    clientConfig: {service: {namespace: kube-system, name: absent}}
`

// refusing waits until the API server refuses pods that no policy selects, or admits them.
func (u breaker) refusing(t testing.TB, refuses bool) {
	t.Helper()
	eventually(t, time.Minute, fmt.Sprintf("pods that no policy selects are refused: %v", refuses), func(t testing.TB) error {
		r := u.command(t.Context(), []byte(u.manifest("dry-"+free, free, 0, "")), "kubectl", "create", "--dry-run=server", "-f", "-")
		if (r.err != nil) != refuses {
			return notYet("%v %s", r.err, r.stderr)
		}
		return nil
	})
}

// bricked expects that pods that no policy selects do not start, as the cases count them.
func (u breaker) bricked(t *testing.T, b unprotectedBreak) {
	names := u.names(false, 2)
	if refused := u.create(t, 2, ""); refused == "" {
		t.Error("no pod was refused")
	}
	pause(t, hold)
	if list := u.unstarted(t, names); len(list) != len(names) {
		t.Errorf("%d unselected pods did not start, want %d: %v", len(list), len(names), list)
	}
	b.heal(t, u)
	u.create(t, 2, "")
	u.arrived(t, 2*time.Minute, "pods that no policy selects start afterwards", names)
	fmt.Fprintf(&u.report, "broken, %s: unselected pods that did not start %d\n", b.name, len(names))
}

// broken expects that packets of all guarded pods are counted, in both directions.
func (u breaker) broken(t *testing.T, b unprotectedBreak) {
	u.number++
	defer u.reset(t)
	b.do(t, u)
	if b.bricks {
		u.bricked(t, b)
		return
	}
	if b.create != nil {
		b.create(t, u.unprotected)
	} else if refused := u.create(t, 2, ""); refused != "" {
		t.Fatal(refused)
	}
	var names []string
	for i := range 2 {
		for _, kind := range b.kinds {
			names = append(names, u.name(kind, i))
		}
	}
	eventually(t, 2*time.Minute, "packets arrive that the groups deny", func(t testing.TB) error {
		seen := u.seen(t)
		for _, name := range names {
			if seen[name].Denied == 0 || seen[name].Called == 0 {
				return notYet("%s: %+v %s", name, seen[name], u.why(t, name))
			}
		}
		return nil
	})
	list := u.violations(t, false)
	if len(list) != len(names) {
		t.Errorf("%d violations, want %d: %v", len(list), len(names), list)
	}
	if b.heal != nil {
		b.heal(t, u)
	}
	fmt.Fprintf(&u.report, "broken, %s: %d guarded pods, unprotected %d\n", b.name, len(names), len(list))
}
