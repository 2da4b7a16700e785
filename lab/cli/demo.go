package cli

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// demoTime bounds the waits of a step of the tour.
const demoTime = 3 * time.Minute

//go:embed demo.yaml
var demoManifest string

type demoCmd struct {
	bringUp
	SkipTest bool `help:"Skip the connectivity test."`
}

// Run brings the lab up and shows it. Everything it prints is read from the API server,
// EC2, the nodes or the product.
func (c *demoCmd) Run(s *session) error {
	if c.NoDeploy {
		return coded{errors.New("--no-deploy: not allowed, because the demo shows the deployed product"), ExitUsage}
	}
	want, err := c.resolve(s.g.Name)
	if err != nil {
		return err
	}
	for _, n := range want.Nodes {
		if n.Before != "" {
			return coded{fmt.Errorf("node %s: before is %s: the demo shows Trunkline; use up", n.Name, n.Before), ExitUsage}
		}
	}
	r, err := c.up(s)
	if err != nil {
		return err
	}
	t, err := s.tour(r)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		title string
		show  func(context.Context) error
	}{
		{"Nodes: EC2 instances that are Kubernetes nodes", t.nodes},
		{"Pods of the demo and the cluster, each with an address of the VPC", t.pods},
		{"Network interfaces, as the EC2 API describes them", t.interfaces},
		{"Status of Trunkline", t.productStatus},
		{"Connectivity test", t.connectivity},
		{"A network policy", t.policy},
		{"Security groups of pods", t.groups},
		{"Path of a pod's address", t.addressPath},
	} {
		if c.SkipTest && step.title == "Connectivity test" {
			continue
		}
		fmt.Fprintf(s.console.out, "\n── %s\n", step.title)
		err := step.show(s.ctx)
		if s.ctx.Err() != nil {
			return s.ctx.Err() // rather than the error of an interrupted program
		}
		if err != nil {
			return fmt.Errorf("%s: %w", strings.ToLower(step.title), err)
		}
	}
	t.nextSteps()
	return nil
}

// cleanUpTime is how long a program of the tour may clean up after Ctrl-C: the
// connectivity test deletes its pods and its namespace.
const cleanUpTime = 2 * time.Minute

// program runs one of our programs against the lab, with its output on the user's
// terminal.
func (t *tour) program(ctx context.Context, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = withEnv(t.product())
	cmd.Stdout, cmd.Stderr = t.out, t.errs
	// In its own process group, so that Ctrl-C in the terminal does not signal it too:
	// Cancel does.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = cleanUpTime
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("%s exited with status %d", strings.Join(argv[:min(len(argv), 3)], " "), exit.ExitCode())
	}
	return err
}

// kubectl runs the lab's kubectl and shows its output only when it fails.
func (t *tour) kubectl(ctx context.Context, stdin string, args ...string) error {
	cmd := exec.CommandContext(ctx, t.Lab.Parts.Kube, append([]string{"kubectl"}, args...)...)
	cmd.Env = withEnv(t.kubernetes())
	cmd.Stdin = strings.NewReader(stdin)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, output.String())
	}
	return nil
}

func (t *tour) productStatus(ctx context.Context) error {
	return t.program(ctx, t.Product, "status", "--wait="+demoTime.String())
}

func (t *tour) connectivity(ctx context.Context) error {
	return t.program(ctx, t.Product, "connectivity", "test")
}

func (t *tour) nextSteps() {
	fmt.Fprintf(t.out, `
── Next steps
  %[1]s kubectl get pods -A -o wide
  %[1]s exec %[2]s -- ip rule               a node's rules; also: nft list ruleset
  %[1]s trunkline show addresses --why      the pod of each address, with reasons
  %[1]s trunkline policy dump               what the kernels hold of policies; log -f: what they deny
  %[1]s trunkline show branches             the interfaces of pods with security groups of their own
  %[1]s aws ec2 describe-security-groups
  %[1]s logs                                list the logs

To use another kubectl:
  export KUBECONFIG=%[3]s

Take it down:
  %[1]s down
`, t.command, t.status.Nodes[0].Name, t.status.Endpoints.Kubeconfig)
}
