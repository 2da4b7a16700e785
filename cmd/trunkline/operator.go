package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

type statusCmd struct {
	cluster
	output
	Wait time.Duration `help:"Wait up to this long until everything is ready." placeholder:"DUR"`
}

// Help is shown by --help.
func (statusCmd) Help() string {
	return "Exits with status 1 if anything is wrong.\n\nExamples:\n\n  trunkline status\n\n  trunkline status --wait 2m -o json"
}

// Run prints the status.
func (c statusCmd) Run(p process) error {
	if c.Wait < 0 {
		return wrongUsage("--wait %s: must not be negative", c.Wait)
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	s, err := cli.WaitStatus(p.ctx, client, c.Wait)
	if err != nil {
		return err
	}
	if c.json() {
		err = cli.WriteJSON(p.out, s)
	} else {
		cli.WriteStatus(p.out, s)
	}
	if err == nil && !s.Ready() {
		return errFailed
	}
	return err
}

type showCmd struct {
	Addresses showAddressesCmd `cmd:"" help:"Every pod address with its state, pod, interface and age."`
	ENIs      showENIsCmd      `cmd:"" name:"enis" help:"The interfaces of nodes with their address counts."`
	Pool      showPoolCmd      `cmd:"" help:"Address counts, and the next actions of the plan."`
	Table     showTableCmd     `cmd:"" help:"A table of an agent, as the agent has it in memory; without a name, the tables."`
	Config    showConfigCmd    `cmd:"" help:"Every setting of this process, its value and the source of the value."`
}

// ledgerFlags are the flags of the commands that read agents' ledgers.
type ledgerFlags struct {
	cluster
	output
	Node    []string `help:"Only this node; may be repeated." placeholder:"NAME" xor:"where"`
	Why     bool     `help:"Add the reasons."`
	Local   bool     `help:"Query the agent of the node that this runs on, without the API server." xor:"where"`
	Address string   `help:"Introspection address of that agent." default:"${introspection}" hidden:""`
}

// Help is shown by --help.
func (ledgerFlags) Help() string {
	return "Examples:\n\n  trunkline show addresses --why\n\n  trunkline show enis --node ip-10-0-0-5.us-west-2.compute.internal\n\n  trunkline show pool --local -o json"
}

func (f ledgerFlags) show(p process, view cli.View) error {
	if f.Local {
		ledger, err := cli.ReadLocalLedger(p.ctx, f.Address)
		if err != nil {
			return err
		}
		if f.json() {
			return cli.WriteJSON(p.out, ledger)
		}
		cli.WriteLedgers(p.out, view, cli.SingleLedger(ledger), f.Why)
		return nil
	}
	client, err := f.client()
	if err != nil {
		return err
	}
	all, err := cli.GatherLedgers(p.ctx, client, f.Node)
	if err != nil {
		return err
	}
	if f.json() {
		err = cli.WriteJSON(p.out, all)
	} else {
		cli.WriteLedgers(p.out, view, all, f.Why)
	}
	if err == nil && len(all.Errors) > 0 {
		return errFailed
	}
	return err
}

type showAddressesCmd struct{ ledgerFlags }

// Run shows addresses.
func (c showAddressesCmd) Run(p process) error { return c.show(p, cli.ViewAddresses) }

type showENIsCmd struct{ ledgerFlags }

// Run shows interfaces.
func (c showENIsCmd) Run(p process) error { return c.show(p, cli.ViewENIs) }

type showPoolCmd struct{ ledgerFlags }

// Run shows the pool.
func (c showPoolCmd) Run(p process) error { return c.show(p, cli.ViewPool) }

type showTableCmd struct {
	cluster
	output
	Name   string `arg:"" optional:"" help:"Name of the table; without one, the names of all are listed."`
	Node   string `help:"Query the agent of this node through the API server, in place of the one that this runs on." placeholder:"NAME"`
	Socket string `help:"Socket of this node's agent; its debug socket is beside it." default:"${socket}" env:"TRUNKLINE_SOCKET" type:"path" placeholder:"FILE"`
}

// Help is shown by --help.
func (showTableCmd) Help() string {
	return "On a node it needs root and no API server. Columns are for people and may change from one version to the next.\n\nExamples:\n\n  trunkline show table\n\n  trunkline show table endpoints\n\n  trunkline show table addresses --node ip-10-0-0-5.us-west-2.compute.internal -o json"
}

// Run shows a table.
func (c showTableCmd) Run(p process) error {
	query := cli.TableQuery{Name: c.Name, JSON: c.json()}
	text, err := c.read(p.ctx, query)
	if err != nil {
		return err
	}
	_, err = io.WriteString(p.out, text)
	return err
}

func (c showTableCmd) read(ctx context.Context, query cli.TableQuery) (string, error) {
	if c.Node == "" {
		return cli.ReadLocalTable(ctx, c.Socket, query)
	}
	client, err := c.client()
	if err != nil {
		return "", err
	}
	return cli.ReadTable(ctx, client, c.Node, query)
}

type showConfigCmd struct {
	configured
	output
}

// Help is shown by --help.
func (showConfigCmd) Help() string {
	return "Example:\n\n  kubectl exec -n kube-system ds/trunkline-agent -- /trunkline show config -o json"
}

// Run shows the settings.
func (c showConfigCmd) Run(p process) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if c.json() {
		return cli.WriteJSON(p.out, cli.Settings(cfg.Describe()))
	}
	cli.WriteSettings(p.out, cfg.Describe())
	return nil
}

type ec2Cmd struct {
	Freeze freezeCmd `cmd:"" help:"Stop changes to EC2 immediately, on every node or on some."`
	Thaw   thawCmd   `cmd:"" help:"Release a brake."`
}

type freezeCmd struct {
	cluster
	Release bool     `help:"Stop releases; allocations continue." xor:"what" required:""`
	All     bool     `help:"Stop all changes." xor:"what" required:""`
	Node    []string `help:"Only this node; may be repeated." placeholder:"NAME"`
	Name    string   `help:"Name of the brake." default:"operator"`
	Reason  string   `help:"Why, shown to other operators in trunkline status." required:""`
}

// Help is shown by --help.
func (freezeCmd) Help() string {
	return "Agents apply the brake within a second, and keep applying it while the API server is unreachable.\n\nExamples:\n\n  trunkline ec2 freeze --release --reason 'EC2 incident 4711'\n\n  trunkline ec2 freeze --all --node ip-10-0-0-5.us-west-2.compute.internal --name ip5 --reason 'forensics'"
}

// Run creates the brake.
func (c freezeCmd) Run(p process) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	for _, name := range c.Node {
		_, err := client.Core.CoreV1().Nodes().Get(p.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // other errors pass: the user need not have the right to read nodes
			return wrongUsage("--node %q: no such node; the brake would stop nothing", name)
		}
	}
	what := trunkline.FreezeRelease
	if c.All {
		what = trunkline.FreezeAll
	}
	err = kube.PutBrake(p.ctx, client, trunkline.Brake{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name},
		Spec:       trunkline.BrakeSpec{Freeze: what, Nodes: c.Node, Reason: c.Reason},
	})
	if err == nil {
		_, err = fmt.Fprintf(p.out, "brake %s is in force: freeze %s\nrelease it with: trunkline ec2 thaw --name %s\n", c.Name, what, c.Name)
	}
	if err == nil && cli.StopsNothing(p.ctx, client, c.Node) {
		_, err = fmt.Fprintln(p.out, "it stops nothing: no node in its scope uses EC2, see trunkline status")
	}
	return err
}

type thawCmd struct {
	cluster
	Name string `help:"Name of the brake." default:"operator"`
}

// Help is shown by --help.
func (thawCmd) Help() string {
	return "Other brakes stay in force; trunkline status lists them.\n\nExamples:\n\n  trunkline ec2 thaw\n\n  trunkline ec2 thaw --name ip5"
}

// Run deletes the brake.
func (c thawCmd) Run(p process) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	if err := kube.DeleteBrake(p.ctx, client, c.Name); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "brake %s is released\n", c.Name)
	return err
}

type connectivityCmd struct {
	Test testCmd `cmd:"" help:"Create pods, send packets between them, nodes, services and hosts outside, check what arrives, clean up."`
}

type testCmd struct {
	cluster
	output
	Test         string        `help:"Run only cases with a name that matches this regular expression." placeholder:"REGEX"`
	List         bool          `help:"List the cases and exit."`
	JUnitFile    string        `name:"junit-file" help:"Write the results as JUnit XML." type:"path" placeholder:"FILE"`
	Image        string        `help:"Workload image of the test's pods; the nodes must have it or be able to pull it." default:"${workload}" env:"TRUNKLINE_TEST_IMAGE"`
	Namespace    string        `help:"Namespace that the test creates and deletes." default:"trunkline-test"`
	Keep         bool          `help:"Keep the namespace and its pods after the test."`
	Timeout      time.Duration `help:"Time limit of the whole run." default:"10m"`
	Concurrency  int           `help:"Number of cases that run at the same time." default:"4"`
	MTU          int           `name:"mtu" help:"MTU of the pod network, bytes." default:"${mtu}"`
	Outside      string        `help:"Address of a host outside the VPC that runs 'workload serve'; without one, the cases that need it are skipped." placeholder:"ADDRESS" env:"TRUNKLINE_TEST_OUTSIDE"`
	OutsideHTTP  int           `name:"outside-http" help:"Its HTTP port." default:"8080"`
	OutsideUDP   int           `name:"outside-udp" help:"Its UDP port." default:"8082"`
	ExternalName string        `help:"DNS name outside the cluster." default:"ec2.us-west-2.amazonaws.com" env:"TRUNKLINE_TEST_EXTERNAL_NAME"`
}

// Help is shown by --help.
func (testCmd) Help() string {
	return "Exits with status 1 if a case failed or no selected case could run, 2 if the command line is invalid, 130 if interrupted; it cleans up in every case. Cases that cannot run are skipped with the reason. One test runs in a cluster at a time: a second one is refused and names the holder of the first. The next test removes what a killed test left behind.\n\nExamples:\n\n  trunkline connectivity test\n\n  trunkline connectivity test --test '^pod-to-(pod|service)/' --junit-file junit.xml\n\n  trunkline connectivity test --list\n\n  trunkline connectivity test --mtu 1500 --image registry.example.com/trunkline-workload:v1"
}

func (c testCmd) options() (connectivity.Options, error) {
	o := connectivity.Options{
		Namespace: c.Namespace, MTU: c.MTU, Outside: c.Outside, OutsideHTTP: c.OutsideHTTP, OutsideUDP: c.OutsideUDP,
		ExternalName: c.ExternalName, CaseTimeout: 30 * time.Second, SetupTimeout: 3 * time.Minute, SettleTime: 20 * time.Second,
		Concurrency: c.Concurrency, Keep: c.Keep,
	}
	if c.Test != "" {
		filter, err := regexp.Compile(c.Test)
		if err != nil {
			return o, wrongUsage("--test %q: %w", c.Test, err)
		}
		o.Filter = filter
	}
	return o, c.check()
}

// check returns an error for the first flag with an invalid value.
func (c testCmd) check() error {
	for _, n := range []struct {
		flag            string
		value, min, max int
	}{
		{"--mtu", c.MTU, 1280, 65535},
		{"--concurrency", c.Concurrency, 1, 64},
		{"--outside-http", c.OutsideHTTP, 1, 65535},
		{"--outside-udp", c.OutsideUDP, 1, 65535},
	} {
		if n.value < n.min || n.value > n.max {
			return wrongUsage("%s %d: must be from %d to %d", n.flag, n.value, n.min, n.max)
		}
	}
	if c.Timeout <= 0 {
		return wrongUsage("--timeout %s: must be positive", c.Timeout)
	}
	if why := validation.IsDNS1123Label(c.Namespace); len(why) > 0 {
		return wrongUsage("--namespace %q: %s", c.Namespace, why[0])
	}
	if why := validation.IsDNS1123Subdomain(strings.TrimSuffix(c.ExternalName, ".")); len(why) > 0 {
		return wrongUsage("--external-name %q: %s", c.ExternalName, why[0])
	}
	if _, err := netip.ParseAddr(c.Outside); c.Outside != "" && err != nil {
		return wrongUsage("--outside %q: must be an address such as 203.0.113.10", c.Outside)
	}
	if c.Image == "" || strings.ContainsAny(c.Image, " \t\n") {
		return wrongUsage("--image %q: must be the name of an image", c.Image)
	}
	return nil
}

// Run runs the test.
func (c testCmd) Run(p process) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	if len(connectivity.Selected(o)) == 0 {
		return wrongUsage("--test %q matches no case; see --list", c.Test)
	}
	if c.List {
		return c.list(p, connectivity.Selected(o))
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
func (c testCmd) perform(p process, client *kube.Client, o connectivity.Options) (connectivity.Report, error) {
	ctx, cancel := context.WithTimeoutCause(p.ctx, c.Timeout, fmt.Errorf("--timeout %s exceeded", c.Timeout))
	defer cancel()
	progress := &cli.TestProgress{W: p.out}
	if c.json() {
		progress.W = p.err
	}
	report, err := connectivity.Run(ctx, cli.NewTestCluster(client, c.Image), o, progress)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return report, err
}

func (c testCmd) list(p process, cases []connectivity.Case) error {
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
func (c testCmd) writeJUnit(r connectivity.Report) error {
	if c.JUnitFile == "" {
		return nil
	}
	f, err := os.Create(c.JUnitFile)
	if err != nil {
		return fmt.Errorf("write JUnit: %w", err)
	}
	return errors.Join(r.JUnit(f), f.Close())
}
