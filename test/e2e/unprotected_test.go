//go:build lab

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/trunkline/trunkline/lab/workload"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/test/suite"
)

// Namespaces of the test: that of the pods, with policies, and that of the observer.
const guardedNamespace, observerNamespace = "guarded", "observer"

// Modes of security-groups-for-pods.
const own, managed, ebpf = "own", "managed", "ebpf"

// The workload of admission, in the namespace kube-system.
const admissions = "deployment/trunkline-admission"

// Labels and account of pods.
const (
	byLabel   = "by-label"   // a policy selects the pod by its label
	byAccount = "by-account" // a policy selects the pod by its service account
	free      = "free"       // no policy selects the pod, in the same namespace
)

// unprotected is a lab in which an observer counts what arrives from pods of policies, and calls
// every address of the VPC. It judges by packets only.
type unprotected struct {
	failures
	mode     string // of security-groups-for-pods
	group    string // id of the group of the policies
	nodes    []node
	observer string // its address
	number   int    // of the case, part of the names of pods
	pods     int    // guarded pods so far
	refused  int    // of them, with branches of other groups
	allowed  map[string]workload.Observed
	report   strings.Builder
}

// lateMatch is how soon a pod that comes to match a policy after it was wired is enforced.
const lateMatch = 2 * time.Second

// TestNeverUnprotected creates pods that policies select while parts of the system fail. No packet
// that their groups deny may leave or reach one of them, from its first instruction on, and pods that
// no policy selects start meanwhile. Then it takes the mechanisms away, and packets arrive. A sample is
// of one mode.
func TestNeverUnprotected(t *testing.T) {
	drawn(t)
	seed, rng := seeded(t)
	modes := []string{own, managed, ebpf}
	if !full() {
		modes = modes[rng.IntN(len(modes)):][:1]
	}
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) { neverUnprotected(t, mode, seed, rng) })
	}
}

// neverUnprotected is the test in one mode of security-groups-for-pods.
func neverUnprotected(t *testing.T, mode string, seed uint64, rng *rand.Rand) {
	l := lab{name: uniqueName("unprot"), bin: binaries(t)}
	before := machine(t)
	report := unprotectedReport()
	var err error
	if report.Ran, err = report.Now(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.down(t, before) })
	l.run(t, 40*time.Minute, "up", "--name", l.name, "-f", labOf(t, mode))
	u := &unprotected{failures: failures{l, []string{admissions, controllers}}, mode: mode, nodes: l.nodes(t), group: groupNamed(t, l, "guarded")}
	if mode == ebpf {
		u.deployments = []string{controllers}
	}
	u.start(t)
	cases := chosen(mode, unprotectedCases(), rng, &u.report)
	for _, c := range cases {
		if !t.Run(c.name, func(t *testing.T) { u.run(t, c) }) && t.Context().Err() != nil {
			return
		}
	}
	for _, b := range unprotectedBreaks(mode) {
		if !t.Run("broken: "+b.name, func(t *testing.T) { breaker{u}.broken(t, b) }) {
			return
		}
	}
	u.write(t, report, len(cases), seed)
}

// labOf returns the lab's file for a mode.
func labOf(t testing.TB, mode string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/unprotected.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "lab.yaml")
	text = bytes.ReplaceAll(text, []byte("MODE"), []byte(mode))
	if mode == managed { // an ordinary account
		text = bytes.ReplaceAll(text, []byte("trunkCalls: true"), []byte("trunkCalls: false"))
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// groupNamed returns the id of a security group.
func groupNamed(t testing.TB, l lab, name string) string {
	t.Helper()
	out, err := l.account(t).api.DescribeSecurityGroups(t.Context(), &ec2.DescribeSecurityGroupsInput{})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range out.SecurityGroups {
		if aws.ToString(g.GroupName) == name {
			return aws.ToString(g.GroupId)
		}
	}
	t.Fatalf("EC2 has no group %s", name)
	return ""
}

// start starts the observer, applies the policies and waits until they are compiled.
func (u *unprotected) start(t *testing.T) {
	u.apply(t, namespaceManifest(observerNamespace)+namespaceManifest(guardedNamespace)+accountManifest())
	u.kubectl(t, "-n", observerNamespace, "run", "observer", "--image", workloadImage, "--restart=Never",
		"--overrides", `{"spec":{"nodeName":"`+u.nodes[0].KubeName+`","terminationGracePeriodSeconds":1}}`, "--", "observe", "--call=10.0.0.0/24")
	u.kubectl(t, "-n", observerNamespace, "wait", "--for=condition=Ready", "pod/observer", "--timeout=60s")
	u.observer = strings.TrimSpace(u.kubectl(t, "-n", observerNamespace, "get", "pod", "observer", "-o", "jsonpath={.status.podIP}"))
	u.apply(t, u.policies())
	u.compiled(t)
}

func namespaceManifest(name string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n---\n"
}

// accountManifest is the service account that a policy selects.
func accountManifest() string {
	return "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: " + byAccount + ", namespace: " + guardedNamespace + ", labels: {team: guarded}}\n---\n"
}

// policies select by a label and by a service account.
func (u *unprotected) policies() string { return u.policiesOf(u.group) }

func (u *unprotected) policiesOf(group string) (out string) {
	for name, selector := range map[string]string{byLabel: "podSelector: {matchLabels: {role: " + byLabel + "}}", byAccount: "serviceAccountSelector: {matchLabels: {team: guarded}}"} {
		out += fmt.Sprintf("apiVersion: vpcresources.k8s.aws/v1beta1\nkind: SecurityGroupPolicy\nmetadata: {name: %s, namespace: %s}\nspec:\n  %s\n  securityGroups: {groupIds: [%s]}\n---\n", name, guardedNamespace, selector, group)
	}
	return out
}

// compiled waits until the API server adds the request to selected pods. Where nodes enforce groups,
// it adds none, and a pod waits by itself until its node has its groups.
func (u *unprotected) compiled(t testing.TB) {
	t.Helper()
	if u.mode != ebpf {
		u.admitted(t, true)
	}
}

// admitted waits until the API server admits pods of policies with a request, or without one.
func (u *unprotected) admitted(t testing.TB, request bool) {
	t.Helper()
	eventually(t, 2*time.Minute, fmt.Sprintf("pods are admitted with a request: %v", request), func(t testing.TB) error {
		for _, kind := range []string{byLabel, byAccount} {
			r := u.command(t.Context(), []byte(u.manifest("dry-"+kind, kind, 0, "")), "kubectl", "create", "--dry-run=server", "-o", "json", "-f", "-")
			if r.err != nil || strings.Contains(r.stdout, "vpc.amazonaws.com/pod-eni") != request {
				return notYet("%s: %v %s", kind, r.err, r.stderr)
			}
		}
		return nil
	})
}

// manifest is a pod of a kind on a node, the first act of which is to send to the observer. more are
// further fields of its spec.
func (u *unprotected) manifest(name, kind string, node int, more string) string {
	account := "default"
	if kind == byAccount {
		account = byAccount
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {role: %s, case: "%d"}}
spec:
  nodeSelector: {kubernetes.io/hostname: %q}
  serviceAccountName: %s
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  tolerations: [{operator: Exists}]
%s
  containers: [{name: attempt, image: %q, args: [attempt, %q]}]
---
`, name, guardedNamespace, kind, u.number, u.nodes[node].KubeName, account, more, workloadImage, u.observer)
}

// name is that of a pod of the current case.
func (u *unprotected) name(kind string, i int) string {
	return fmt.Sprintf("c%d-%s-%d", u.number, kind, i)
}

// isGuarded reports whether policies select the pod with this name.
func isGuarded(name string) bool {
	return strings.Contains(name, "-"+byLabel+"-") || strings.Contains(name, "-"+byAccount+"-")
}

// names of guarded and free pods of the current case.
func (u *unprotected) names(guarded bool, each int) (names []string) {
	for i := range each {
		for _, kind := range []string{byLabel, byAccount, free} {
			if name := u.name(kind, i); isGuarded(name) == guarded {
				names = append(names, name)
			}
		}
	}
	return names
}

// create tries to create pods of the current case: each of each kind, on the nodes in turn. It
// returns what refused them.
func (u *unprotected) create(t testing.TB, each int, more string) string {
	t.Helper()
	var text strings.Builder
	for i := range each {
		for _, kind := range []string{byLabel, byAccount, free} {
			text.WriteString(u.manifest(u.name(kind, i), kind, i%len(u.nodes), more))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return u.command(ctx, []byte(text.String()), "kubectl", "apply", "-f", "-").stderr
}

// hold is how long pods are observed under a fault after the free ones have started.
const hold = 3 * time.Second

// run runs one case.
func (u *unprotected) run(t *testing.T, c unprotectedCase) {
	u.number++
	started, each := time.Now(), cmp.Or(c.each, 2)
	healed := false
	defer func() {
		if !healed { // the case has failed
			u.heal(t, c)
		}
		u.reset(t)
	}()
	if c.inject != nil {
		c.inject(t, u)
	}
	if c.cold {
		restartAll(t, u)
	}
	refused := ""
	if c.create != nil {
		c.create(t, u)
	} else {
		refused = u.create(t, each, "")
	}
	if c.during != nil {
		c.during(t, u)
	}
	u.arrived(t, cmp.Or(c.within, 2*time.Minute), "pods that no policy selects start under the fault", u.names(false, each))
	if c.runs && c.gives != u.mode {
		u.arrived(t, 2*time.Minute, "guarded pods start under the fault", u.names(true, each))
	}
	pause(t, hold)
	if c.stops {
		u.stopped(t, u.names(true, each))
	}
	if list := u.violations(t, true); len(list) > 0 {
		t.Errorf("under the fault, unprotected: %s", strings.Join(list, "\n"))
	}
	healed = true
	u.heal(t, c)
	u.started(t, c, each)
	list := u.violations(t, true)
	for _, line := range list {
		t.Errorf("unprotected: %s", line)
	}
	guarded := len(u.guarded(t))
	u.pods += guarded
	if refused != "" {
		refused = ", some refused at admission"
	}
	fmt.Fprintf(&u.report, "%s: %d guarded pods%s, unprotected %d, unselected pods that did not start 0 (%.0f s)\n", c.name, guarded, refused, len(list), time.Since(started).Seconds())
}

// stopped checks that pods wait for what the fault keeps from them.
func (u *unprotected) stopped(t testing.TB, names []string) {
	t.Helper()
	seen := u.seen(t)
	for _, name := range names {
		if seen[name].Allowed > 0 {
			t.Errorf("%s has started under the fault", name)
		}
	}
}

// guarded are the guarded pods of the case that exist.
func (u *unprotected) guarded(t testing.TB) (names []string) {
	t.Helper()
	for _, name := range strings.Fields(u.kubectl(t, "-n", guardedNamespace, "get", "pods", "-l", fmt.Sprintf("case=%d", u.number), "-o", "name")) {
		if isGuarded(name) {
			names = append(names, strings.TrimPrefix(name, "pod/"))
		}
	}
	return names
}

// started waits until the guarded pods run and are observed, after the fault. Those that were refused
// are created again, as a controller of Kubernetes would.
func (u *unprotected) started(t *testing.T, c unprotectedCase, each int) {
	if c.never && u.mode != ebpf {
		return
	}
	if u.mode == managed {
		deleteRefused(t, u)
	}
	if c.create == nil {
		eventually(t, time.Minute, "refused pods are created after the fault", func(t testing.TB) error {
			if refused := u.create(t, each, ""); refused != "" {
				return notYet("%s", refused)
			}
			return nil
		})
	}
	exist := u.guarded(t)
	names := slices.DeleteFunc(u.names(true, min(each, 4)), func(name string) bool { return !slices.Contains(exist, name) })
	u.arrived(t, cmp.Or(c.within, 4*time.Minute), "guarded pods run after the fault", names)
	pause(t, time.Second)
}

// restartAll restarts all daemons, and AWS's controller where it makes branches.
func restartAll(t testing.TB, u *unprotected) {
	u.restart(t, u.daemons()...)
	if u.mode == managed {
		u.restartAWSs(t)
	}
}

// deleteRefused deletes the pods that their nodes refuse because AWS's controller has given their
// branches other groups, as the event of such a pod asks for.
func deleteRefused(t testing.TB, u *unprotected) {
	t.Helper()
	of := strings.Fields(u.kubectl(t, "-n", guardedNamespace, "get", "events", "--field-selector", "reason=PodENIRefused", "-o", "jsonpath={.items[*].involvedObject.name}"))
	for _, name := range u.guarded(t) {
		if slices.Contains(of, name) {
			u.kubectl(t, "-n", guardedNamespace, "delete", "pod", name, "--force", "--grace-period=0")
			u.refused++
		}
	}
}

// pause waits while the observer counts.
func pause(t testing.TB, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// heal removes the fault of a case.
func (u *unprotected) heal(t *testing.T, c unprotectedCase) {
	u.apiFaults(t)
	u.ec2Faults(t, faults.Plan{})
	if c.heal != nil {
		c.heal(t, u)
	}
}

// sampled is how many cases a sample has.
const sampled = 3

// chosen returns the cases that run: all of the mode in full, otherwise a random sample, in the order
// of the table. The report names the others.
func chosen(mode string, all []unprotectedCase, rng *rand.Rand, report *strings.Builder) (cases []unprotectedCase) {
	for _, c := range all {
		if why := c.not[mode]; why != "" {
			fmt.Fprintf(report, "%s: not applicable, %s\n", c.name, why)
		} else if full() || !c.long {
			cases = append(cases, c)
		}
	}
	if full() {
		return cases
	}
	drawn, slow := []int{}, 0
	for _, i := range rng.Perm(len(cases)) {
		if len(drawn) == sampled || cases[i].slow && slow > 0 {
			continue
		}
		if cases[i].slow {
			slow++
		}
		drawn = append(drawn, i)
	}
	slices.Sort(drawn)
	sample := make([]unprotectedCase, 0, len(drawn))
	for _, i := range drawn {
		sample = append(sample, cases[i])
	}
	return sample
}

// write writes the report of the suite, if it ran in full.
func (u *unprotected) write(t *testing.T, to suite.Report, cases int, seed uint64) {
	if u.mode == managed {
		fmt.Fprintf(&u.report, "AWS's controller gave the groups of the node to %d pods that policies select, and their nodes refused them\n", u.refused)
	}
	t.Logf("%d cases, seed %d, %d guarded pods\n%s", cases, seed, u.pods, u.report.String())
	if !full() || t.Failed() {
		return
	}
	if err := to.Write(u.mode, suite.Counted{Number: u.pods, Of: "guarded pods", Seed: seed}, u.report.String()); err != nil {
		t.Fatal(err)
	}
}
