package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

//go:embed policy.yaml
var policyManifest string

// policy applies a network policy to the demo's pods, and shows a connection that it denies,
// with what the product says of it, and one that it allows.
func (t *tour) policy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoTime)
	defer cancel()
	if err := t.kubectl(ctx, strings.ReplaceAll(policyManifest, "IMAGE", t.Workload), "apply", "-f", "-"); err != nil {
		return err
	}
	if err := t.kubectl(ctx, "", "-n", demoNamespace, "wait", "--for=condition=Ready", "pod/friend", "pod/stranger", "--timeout=60s"); err != nil {
		return err
	}
	pods, err := t.kube.CoreV1().Pods(demoNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return err
	}
	if len(pods.Items) == 0 {
		return errors.New("the demo has no pod web")
	}
	web := pods.Items[0]
	at, err := netip.ParseAddr(web.Status.PodIP)
	if err != nil {
		return fmt.Errorf("the address of pod %s: %w", web.Name, err)
	}
	fmt.Fprintf(t.out, "NetworkPolicy web-from-friend: pods web accept connections to their port http from pods friend only\n")
	for _, c := range []struct {
		from    string
		allowed bool
	}{{"stranger", false}, {"friend", true}} {
		fmt.Fprintf(t.out, "\n$ %[1]s trunkline policy trace %[2]s/%[3]s %[2]s/%[4]s http\n", t.command, demoNamespace, c.from, web.Name)
		if err := t.exits(ctx, !c.allowed, t.Product, "policy", "trace", demoNamespace+"/"+c.from, demoNamespace+"/"+web.Name, "http"); err != nil {
			return err
		}
		if err := t.connects(ctx, c.from, netip.AddrPortFrom(at, 8080), c.allowed); err != nil {
			return err
		}
	}
	fmt.Fprintf(t.out, "\n$ %s trunkline policy why-denied %s/stranger\n", t.command, demoNamespace)
	return t.program(ctx, t.Product, "policy", "why-denied", demoNamespace+"/stranger")
}

// exits is program that must exit with status 1, if that is wanted.
func (t *tour) exits(ctx context.Context, failing bool, argv ...string) error {
	err := t.program(ctx, argv...)
	if failing && err != nil && ctx.Err() == nil {
		return nil
	}
	if failing && err == nil {
		return fmt.Errorf("%s exited with status 0", strings.Join(argv[:min(len(argv), 3)], " "))
	}
	return err
}

// connects sends requests from a pod until one has the wanted outcome, and prints it. Policies
// come into force some milliseconds after they are created.
func (t *tour) connects(ctx context.Context, from string, to netip.AddrPort, allowed bool) error {
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		err := t.kubectl(ctx, "", "-n", demoNamespace, "exec", from, "--", "/workload", "dial", "http", to.String(), "--timeout=2s")
		var exit *exec.ExitError
		switch answered := err == nil; {
		case ctx.Err() != nil:
			return fmt.Errorf("requests from %s to %s do not become as the policy has them: %w", from, to, ctx.Err())
		case err != nil && !errors.As(err, &exit):
			return err
		case answered == allowed && allowed:
			fmt.Fprintf(t.out, "  a request from %s to %s: answered\n", from, to)
			return nil
		case answered == allowed:
			fmt.Fprintf(t.out, "  a request from %s to %s: no answer in 2 s\n", from, to)
			return nil
		}
		select {
		case <-ctx.Done():
		case <-again.C:
		}
	}
}
