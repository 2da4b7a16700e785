package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

func connectivityCommands() *cobra.Command {
	return group("connectivity", "Test the network of any cluster.", leaf(&testCmd{}, &cobra.Command{
		Use:   "test",
		Short: "Create pods, send packets between them, nodes, services and hosts outside, check what arrives, clean up.",
		Long: "Exits with status 1 if a case failed or no selected case could run, 2 if the command line is invalid, 130 if interrupted; " +
			"it cleans up in every case. Cases that cannot run are skipped with the reason. " +
			"One test runs in a cluster at a time: a second one is refused and names the holder of the first. " +
			"The next test removes what a killed test left behind.",
		Example: lines("trunkline connectivity test",
			"trunkline connectivity test --test '^pod-to-(pod|service)/' --junit-file junit.xml",
			"trunkline connectivity test --list",
			"trunkline connectivity test --mtu 1500 --image registry.example.com/trunkline-workload:v1"),
	}))
}

type testCmd struct {
	cluster
	output
	options connectivity.Options // as far as they are flags
	filter  string
	list    bool
	junit   filePath
	image   string
	timeout time.Duration
}

func (c *testCmd) bind(f *pflag.FlagSet) {
	c.cluster.bind(f)
	c.output.bind(f)
	f.StringVar(&c.filter, "test", "", "Run only cases with a name that matches this regular `expression`.")
	f.BoolVar(&c.list, "list", false, "List the cases and exit.")
	f.Var(&c.junit, "junit-file", "Write the results as JUnit XML.")
	f.StringVar(&c.image, "image", workloadImage(version), "Workload image of the test's pods; the nodes must have it or be able to pull it.")
	orVariable(f, "image", "TRUNKLINE_TEST_IMAGE")
	f.StringVar(&c.options.Namespace, "namespace", "trunkline-test", "Namespace that the test creates and deletes.")
	f.BoolVar(&c.options.Keep, "keep", false, "Keep the namespace and its pods after the test.")
	f.DurationVar(&c.timeout, "timeout", 10*time.Minute, "Time limit of the whole run.")
	f.IntVar(&c.options.Concurrency, "concurrency", 4, "Number of cases that run at the same time.")
	f.IntVar(&c.options.MTU, "mtu", vpc.MTU, "MTU of the pod network, bytes.")
	f.StringVar(&c.options.Outside, "outside", "", "IP `address` of a host outside the VPC that runs 'workload serve'; without one, the cases that need it are skipped.")
	orVariable(f, "outside", "TRUNKLINE_TEST_OUTSIDE")
	f.IntVar(&c.options.OutsideHTTP, "outside-http", 8080, "Its HTTP port.")
	f.IntVar(&c.options.OutsideUDP, "outside-udp", 8082, "Its UDP port.")
	f.StringVar(&c.options.ClientGroup, "client-group", "", "Id of a security group for pods. Without it and --server-group, the cases with security groups for pods are skipped.")
	orVariable(f, "client-group", "TRUNKLINE_TEST_CLIENT_GROUP")
	f.StringVar(&c.options.ServerGroup, "server-group", "", "Id of a security group for pods that accepts TCP port 8080 from --client-group and nothing else.")
	orVariable(f, "server-group", "TRUNKLINE_TEST_SERVER_GROUP")
	f.StringVar(&c.options.ExternalName, "external-name", "ec2.us-west-2.amazonaws.com", "DNS name outside the cluster.")
	orVariable(f, "external-name", "TRUNKLINE_TEST_EXTERNAL_NAME")
}

// complete returns the options, with what is not a flag.
func (c *testCmd) complete() (connectivity.Options, error) {
	o := c.options
	o.CaseTimeout, o.SetupTimeout, o.SettleTime = 30*time.Second, 3*time.Minute, 20*time.Second
	if c.filter != "" {
		filter, err := regexp.Compile(c.filter)
		if err != nil {
			return o, wrongUsage("--test %q: %w", c.filter, err)
		}
		o.Filter = filter
	}
	return o, c.check()
}

// check returns an error for the first flag with an invalid value.
func (c *testCmd) check() error {
	for _, n := range []struct {
		flag            string
		value, min, max int
	}{
		{"--mtu", c.options.MTU, 1280, 65535},
		{"--concurrency", c.options.Concurrency, 1, 64},
		{"--outside-http", c.options.OutsideHTTP, 1, 65535},
		{"--outside-udp", c.options.OutsideUDP, 1, 65535},
	} {
		if n.value < n.min || n.value > n.max {
			return wrongUsage("%s %d: must be from %d to %d", n.flag, n.value, n.min, n.max)
		}
	}
	if c.timeout <= 0 {
		return wrongUsage("--timeout %s: must be positive", c.timeout)
	}
	if why := validation.IsDNS1123Label(c.options.Namespace); len(why) > 0 {
		return wrongUsage("--namespace %q: %s", c.options.Namespace, why[0])
	}
	if why := validation.IsDNS1123Subdomain(strings.TrimSuffix(c.options.ExternalName, ".")); len(why) > 0 {
		return wrongUsage("--external-name %q: %s", c.options.ExternalName, why[0])
	}
	if _, err := netip.ParseAddr(c.options.Outside); c.options.Outside != "" && err != nil {
		return wrongUsage("--outside %q: must be an address such as 203.0.113.10", c.options.Outside)
	}
	if c.image == "" || strings.ContainsAny(c.image, " \t\n") {
		return wrongUsage("--image %q: must be the name of an image", c.image)
	}
	return c.checkGroups()
}

// checkGroups returns an error for security groups with which no case can run.
func (c *testCmd) checkGroups() error {
	if (c.options.ClientGroup == "") != (c.options.ServerGroup == "") {
		return wrongUsage("--client-group %q, --server-group %q: both or none are needed", c.options.ClientGroup, c.options.ServerGroup)
	}
	for _, g := range []struct{ flag, id string }{{"--client-group", c.options.ClientGroup}, {"--server-group", c.options.ServerGroup}} {
		if g.id != "" && !strings.HasPrefix(g.id, "sg-") {
			return wrongUsage("%s %q: must be the id of a security group, such as sg-0123456789abcdef0", g.flag, g.id)
		}
	}
	return nil
}

// run runs the test.
func (c *testCmd) run(p process) error {
	o, err := c.complete()
	if err != nil {
		return err
	}
	if len(connectivity.Selected(o)) == 0 {
		return wrongUsage("--test %q matches no case; see --list", c.filter)
	}
	if c.list {
		return c.printList(p, connectivity.Selected(o))
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	// Written before the run, so that an unwritable path fails at once and a killed run
	// does not leave a passing file.
	if err := c.writeJUnit(connectivity.Unrun(o, "the run has not finished")); err != nil {
		return err
	}
	report, err := c.perform(p, client, o)
	err = errors.Join(err, c.writeJUnit(report))
	switch {
	case !c.json() && len(report.Cases) > report.Aborted:
		cli.WriteTestSummary(p.out, report)
	case c.json() && err == nil:
		err = cli.WriteJSON(p.out, report)
	}
	if err == nil && !report.Succeeded() {
		return errFailed
	}
	return err
}

// perform runs the cases within --timeout.
func (c *testCmd) perform(p process, client *kube.Client, o connectivity.Options) (connectivity.Report, error) {
	ctx, cancel := context.WithTimeoutCause(p.ctx, c.timeout, fmt.Errorf("--timeout %s exceeded", c.timeout))
	defer cancel()
	progress := &cli.TestProgress{W: p.out}
	if c.json() {
		progress.W = p.err
	}
	report, err := connectivity.Run(ctx, cli.NewTestCluster(client, c.image), o, progress)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return report, err
}

func (c *testCmd) printList(p process, cases []connectivity.Case) error {
	if !c.json() {
		cli.WriteTestList(p.out, cases)
		return nil
	}
	type line struct {
		Name    string `json:"name"`
		Asserts string `json:"asserts"`
	}
	lines := make([]line, len(cases))
	for i, k := range cases {
		lines[i] = line{k.Name, k.Asserts}
	}
	return cli.WriteJSON(p.out, lines)
}

// writeJUnit writes the file of --junit-file, if set.
func (c *testCmd) writeJUnit(r connectivity.Report) error {
	if c.junit == "" {
		return nil
	}
	f, err := os.Create(string(c.junit))
	if err != nil {
		return fmt.Errorf("write JUnit: %w", err)
	}
	return errors.Join(r.JUnit(f), f.Close())
}
