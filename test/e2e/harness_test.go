//go:build lab

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/lab/daemon"
)

// lab is one lab of a test run, driven by the binaries a user has.
type lab struct {
	name string
	bin  string // directory of trunkline, trunkline-cni, trunkline-lab
	env  []string
}

// uniqueName returns a name for a lab that no user and no other test run has.
func uniqueName(purpose string) string { return fmt.Sprintf("%s-%08x", purpose, rand.Uint32()) }

// with returns the lab driven with additional environment variables.
func (l lab) with(env ...string) lab {
	l.env = slices.Concat(l.env, env)
	return l
}

// result is the output and the error of a command.
type result struct {
	stdout, stderr string
	err            error
}

func (r result) String() string {
	return strings.TrimSpace(r.stdout + "\n" + r.stderr)
}

// try runs a trunkline-lab command with a deadline of its own.
func (l lab) try(ctx context.Context, args ...string) result {
	return l.command(ctx, nil, args...)
}

// process returns a trunkline-lab command that is not started yet.
func (l lab) process(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, "trunkline-lab"), args...)
	cmd.Dir = filepath.Dir(l.bin)
	cmd.Env = slices.Concat(os.Environ(), []string{"TRUNKLINE_LAB=" + l.name}, l.env)
	return cmd
}

func (l lab) command(ctx context.Context, stdin []byte, args ...string) result {
	cmd := l.process(ctx, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.WaitDelay = 5 * time.Second
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errb
	err := cmd.Run()
	return result{out.String(), errb.String(), err}
}

// run is try for a command that must succeed; it returns the output.
func (l lab) run(t testing.TB, limit time.Duration, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r := l.try(ctx, args...)
	if r.err != nil {
		t.Fatalf("trunkline-lab %s: %v\n%s", strings.Join(args, " "), r.err, r)
	}
	return r.stdout
}

func (l lab) kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return l.run(t, 3*time.Minute, append([]string{"kubectl"}, args...)...)
}

// apply runs `kubectl apply` with a manifest.
func (l lab) apply(t testing.TB, manifest string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r := l.command(ctx, []byte(manifest), "kubectl", "apply", "-f", "-"); r.err != nil {
		t.Fatalf("kubectl apply: %v\n%s", r.err, r)
	}
}

// get decodes `kubectl get -o json` into v.
func (l lab) get(t testing.TB, v any, args ...string) {
	t.Helper()
	out := l.kubectl(t, append(append([]string{"get"}, args...), "-o", "json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("kubectl get %s: %v", strings.Join(args, " "), err)
	}
}

// remove deletes an object and waits until it is gone; an absent one is a success.
func (l lab) remove(t testing.TB, object string, more ...string) {
	grace := "--grace-period=1"
	if slices.Contains(more, "--force") {
		grace = "--grace-period=0"
	}
	if strings.HasPrefix(object, "deployment/") {
		more = append(more, "--cascade=foreground") // by default its pods end later
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if r := l.try(ctx, append([]string{"kubectl", "delete", object, "--ignore-not-found", "--wait", grace}, more...)...); r.err != nil {
		t.Errorf("delete %s: %v\n%s", object, r.err, r)
	}
}

// runPod starts one pod and waits until it is ready; it is deleted when the test
// ends.
func (l lab) runPod(t testing.TB, name string, args ...string) {
	t.Helper()
	l.kubectl(t, append([]string{"run", name, "--image", workloadImage, "--restart", "Never", "--"}, args...)...)
	t.Cleanup(func() { l.remove(t, "pod/"+name) })
	l.kubectl(t, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
}

// goneWithin waits until no pod of a selector is left.
func (l lab) goneWithin(t testing.TB, limit time.Duration, selector string) {
	t.Helper()
	eventually(t, limit, "pods of "+selector+" are gone", func(t testing.TB) error {
		names := strings.Fields(l.kubectl(t, "get", "pods", "-l", selector, "-o", "name"))
		if len(names) > 0 {
			return notYet("%d still exist", len(names))
		}
		return nil
	})
}

// failedSandboxes returns the events of pods with a name prefix about sandboxes that
// could not be made, were lost or could not be removed. A container process that
// could not be killed at the first attempt is not a network failure.
func (l lab) failedSandboxes(t testing.TB, prefix string) []string {
	t.Helper()
	var events corev1.EventList
	l.get(t, &events, "events")
	var out []string
	for _, e := range events.Items {
		bad := slices.Contains([]string{"FailedCreatePodSandBox", "SandboxChanged"}, e.Reason) ||
			e.Reason == "FailedKillPod" && strings.Contains(e.Message, "KillPodSandbox")
		if strings.HasPrefix(e.InvolvedObject.Name, prefix) && bad {
			out = append(out, fmt.Sprintf("%s %s %d times: %s", e.InvolvedObject.Name, e.Reason, max(1, e.Count), e.Message))
		}
	}
	return out
}

func (l lab) status(t testing.TB) daemon.Status {
	t.Helper()
	s, err := daemon.NewClient(daemon.StateDir(l.name)).Status(t.Context())
	if err != nil {
		t.Fatalf("status of lab %s: %v", l.name, err)
	}
	return s
}

// nodes returns the nodes in the order of lab.yaml.
func (l lab) nodes(t testing.TB) (all []node) {
	t.Helper()
	for _, n := range l.status(t).Nodes {
		all = append(all, node{l, n})
	}
	return all
}

var seedFlag = flag.Uint64("seed", 0, "seed of random choices; 0 takes the time")

// random returns a random source and logs its seed, so that a run can be repeated.
func random(t testing.TB) *rand.Rand {
	t.Helper()
	_, rng := seeded(t)
	return rng
}

// seeded returns the seed as well.
func seeded(t testing.TB) (uint64, *rand.Rand) {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("random choices by -seed %d", seed)
	return seed, rand.New(rand.NewPCG(seed, 0))
}

// full reports whether the long suites run, with larger samples.
func full() bool { return os.Getenv("TRUNKLINE_SUITES") == "full" }
