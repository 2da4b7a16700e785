//go:build lab

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/spec"
)

// leakedTags are the tags of an interface made by the agent of an instance that no
// longer exists.
func leakedTags() map[string]string {
	return map[string]string{
		vpc.TagManagedBy: "trunkline", vpc.TagInstanceID: "i-0deadbeef00000000", vpc.TagClusterName: spec.ClusterName,
		vpc.TagCreatedAt: time.Now().Add(-time.Hour).UTC().Format(time.RFC3339),
	}
}

// The cluster's controller finds an unowned interface and deletes it after two
// observations agree. In a dry run it logs the interface and keeps it. It never
// deletes interfaces of other owners.
func leakedInterfacesAreCollected(t *testing.T, l lab) {
	a := l.account(t)
	leaked := a.leak(t, leakedTags())
	unmarked, another := leakedTags(), leakedTags()
	delete(unmarked, vpc.TagManagedBy)
	another[vpc.TagClusterName] = "another-cluster"
	foreign := []string{a.leak(t, unmarked), a.leak(t, another)}
	defer func() {
		for _, id := range append(foreign, leaked) {
			if a.exists(t, id) {
				a.deleteInterface(t, id)
			}
		}
	}()
	c := collector{l}
	t.Cleanup(func() { c.restart(context.Background(), t) })

	c.restart(t.Context(), t, "--every=5s", "--dry-run")
	eventually(t, time.Minute, "the dry run logs what it would delete", func(t testing.TB) error {
		if !strings.Contains(c.logs(t), "would delete leaked interface\" eni="+leaked) {
			return notYet("no line about %s in the controllers' logs", leaked)
		}
		return nil
	})
	if got := c.metric(t, `trunkline_controller_leaked_interfaces{state="confirmed"}`); got != 1 {
		t.Errorf("%v interfaces are confirmed as leaked, want 1", got)
	}
	if !a.exists(t, leaked) {
		t.Errorf("%s was deleted in a dry run", leaked)
	}

	c.restart(t.Context(), t, "--every=5s", "--log-level=debug")
	eventually(t, time.Minute, "the leaked interface is deleted", func(t testing.TB) error {
		if a.exists(t, leaked) {
			return notYet("%s still exists", leaked)
		}
		return nil
	})
	if !strings.Contains(c.logs(t), "interface looks leaked\" eni="+leaked) {
		t.Errorf("%s was deleted without waiting for its second confirmation", leaked)
	}
	c.reportsDeletion(t, leaked)
	for _, id := range foreign {
		if !a.exists(t, id) {
			t.Errorf("%s has another owner and was deleted", id)
		}
	}
}

// collector is the part of the cluster's controllers that deletes leaked interfaces.
type collector struct{ l lab }

// reportsDeletion checks the event, the log line and the counter of a deletion.
func (c collector) reportsDeletion(t testing.TB, id string) {
	t.Helper()
	eventually(t, 30*time.Second, "event, log and metric report the deletion", func(t testing.TB) error {
		var events corev1.EventList
		c.l.get(t, &events, "events", "-n", "kube-system", "--field-selector", "reason=LeakedInterfaceDeleted")
		reported := slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, id) })
		switch {
		case !reported:
			return notYet("no event names %s", id)
		case !strings.Contains(c.logs(t), "leaked interface deleted\" eni="+id):
			return notYet("no log line names %s", id)
		case c.metric(t, "trunkline_controller_deleted_interfaces_total") != 1:
			return notYet("the count is %v", c.metric(t, "trunkline_controller_deleted_interfaces_total"))
		}
		return nil
	})
}

// restart restarts the controllers with arguments.
func (c collector) restart(ctx context.Context, t testing.TB, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	quoted := `"controller"`
	for _, a := range args {
		quoted += fmt.Sprintf(",%q", a)
	}
	for _, command := range [][]string{
		{"patch", controllers, "--type=json", "-p", `[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":[` + quoted + `]}]`},
		{"rollout", "status", controllers, "--timeout=100s"},
	} {
		if r := c.l.try(ctx, append([]string{"kubectl", "-n", "kube-system"}, command...)...); r.err != nil {
			t.Errorf("start the controllers with %v: %v\n%s", args, r.err, r)
		}
	}
}

const controllerLabel = "app.kubernetes.io/name=trunkline-controller"

// logs returns the controllers' last log lines. A controller that ends
// meanwhile ends the command; the next call returns the rest.
func (c collector) logs(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return c.l.try(ctx, "kubectl", "-n", "kube-system", "logs", "-l", controllerLabel, "--tail=200").stdout
}

// metric returns the sum of a metric over the running controllers.
func (c collector) metric(t testing.TB, series string) float64 {
	t.Helper()
	names := c.l.kubectl(t, "-n", "kube-system", "get", "pods", "-l", controllerLabel, "--field-selector", "status.phase=Running", "-o", "jsonpath={.items[*].metadata.name}")
	sum := 0.0
	for _, pod := range strings.Fields(names) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		r := c.l.try(ctx, "kubectl", "get", "--raw", "/api/v1/namespaces/kube-system/pods/"+pod+":8080/proxy/metrics")
		cancel()
		for lines := bufio.NewScanner(strings.NewReader(r.stdout)); lines.Scan(); {
			if value, ok := strings.CutPrefix(lines.Text(), series+" "); ok {
				v, err := strconv.ParseFloat(value, 64)
				if err != nil {
					t.Errorf("%s: %v", lines.Text(), err)
				}
				sum += v
			}
		}
	}
	return sum
}
