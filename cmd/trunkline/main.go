// Command trunkline is all of Trunkline except the CNI plugin: the node agent, the
// cluster controller and the operator's command line. It holds flags and wiring only;
// everything else is in internal/.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strconv"
	"syscall"

	"github.com/alecthomas/kong"
	"k8s.io/klog/v2"

	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// version is set by the linker.
var version = "dev"

// program is the command line.
type program struct {
	Status       statusCmd       `cmd:"" help:"Show Trunkline's state in a cluster, one screen."`
	Show         showCmd         `cmd:"" help:"Show addresses, interfaces, the pool, the configuration or a table of an agent."`
	Connectivity connectivityCmd `cmd:"" help:"Test the network of any cluster."`
	EC2          ec2Cmd          `cmd:"" name:"ec2" help:"Stop Trunkline from changing EC2, and release the stop."`
	Version      versionCmd      `cmd:"" help:"Print the version."`

	Agent      agentCmd      `cmd:"" help:"Run the node's agent (in the DaemonSet)." group:"daemons"`
	Init       initCmd       `cmd:"" help:"Prepare a node: kernel settings and the plugin (privileged, before the agent)." group:"daemons"`
	Uninstall  uninstallCmd  `cmd:"" help:"Remove this node's CNI configuration before the agent is removed permanently." group:"daemons"`
	Controller controllerCmd `cmd:"" help:"Run the cluster's controller (in the Deployment)." group:"daemons"`
}

// process is the part of the process's environment that commands use.
type process struct {
	ctx      context.Context
	out, err io.Writer
}

// errFailed ends the program with status 1. The command has already printed why.
var errFailed = errors.New("failed")

// usageError is an error in a command line that parses, such as a value out of range.
type usageError struct{ error }

func wrongUsage(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// output is the flag for the output format.
type output struct {
	Output string `short:"o" help:"Output format: text or json." enum:"text,json" default:"text"`
}

func (o output) json() bool { return o.Output == "json" }

// cluster holds the flags that select a cluster.
type cluster struct {
	Kubeconfig string `help:"Kubeconfig file; else $KUBECONFIG, ~/.kube/config, or the pod's own account." type:"path" placeholder:"FILE"`
	Context    string `help:"Context of the kubeconfig." placeholder:"NAME"`
}

func (c cluster) client() (*kube.Client, error) {
	return kube.NewClient(kube.Access{Kubeconfig: c.Kubeconfig, Context: c.Context, UserAgent: "trunkline/" + version})
}

// keepMainThread locks the main goroutine to the process's main thread, so that no
// other goroutine runs on it. Goroutines of the agent switch their thread to pods'
// network namespaces, and a thread that cannot switch back is terminated. The main
// thread cannot be terminated, and its namespace (/proc/PID/ns/net) is the one that
// commands executed in the container join.
func keepMainThread() { runtime.LockOSThread() }

func main() {
	keepMainThread()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var p program
	p.Agent.Settings, p.Init.Settings, p.Uninstall.Settings, p.Controller.Settings, p.Show.Config.Settings = settingFlags(), settingFlags(), settingFlags(), settingFlags(), settingFlags()
	exit := -1
	parser, err := kong.New(&p,
		kong.Name("trunkline"),
		kong.Description("Pods with real VPC addresses on Kubernetes.\n\nStart with:\n\n  trunkline status --wait 2m\n\n  trunkline connectivity test"),
		kong.Writers(stdout, stderr),
		kong.Vars{"introspection": cli.DefaultIntrospection, "socket": cli.DefaultSocket, "mtu": strconv.Itoa(vpc.MTU), "workload": workloadImage(version)},
		kong.Exit(func(code int) { exit = code }),
		kong.ExplicitGroups([]kong.Group{{Key: "daemons", Title: "Commands that the manifests run:"}}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
	)
	if err != nil {
		fmt.Fprintln(stderr, "trunkline:", err)
		return 2
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if exit >= 0 { // --help
		return exit
	}
	if err != nil {
		fmt.Fprintf(stderr, "trunkline: %v\ntry: trunkline --help\n", err)
		return 2
	}
	err = command.Run(process{ctx: ctx, out: stdout, err: stderr})
	if err == nil {
		return 0
	}
	if errors.Is(err, errFailed) {
		return 1
	}
	if c, ok := command.Selected().Target.Interface().(interface{ json() bool }); ok && c.json() {
		_ = cli.WriteJSON(stdout, map[string]string{"error": err.Error()}) // stderr has it too
	}
	return reportError(ctx, stderr, err)
}

// reportError prints why a command failed and returns the exit status.
func reportError(ctx context.Context, stderr io.Writer, err error) int {
	var usage usageError
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		fmt.Fprintln(stderr, "trunkline: interrupted")
		return 130
	}
	fmt.Fprintln(stderr, "trunkline:", err)
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// released matches versions with images in the registry.
var released = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// workloadImage returns the default image of the connectivity test's pods: that of the
// release, or for other builds the one that the lab puts on its nodes.
func workloadImage(version string) string {
	tag := "dev"
	if released.MatchString(version) {
		tag = version
	}
	return "trunkline.dev/workload:" + tag
}

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run(p process) error {
	_, err := fmt.Fprintln(p.out, "trunkline", version)
	return err
}

// newLogger returns a logger that writes one line per record, and makes client-go log
// through it.
func newLogger(w io.Writer, level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	log := slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
	klog.SetSlogLogger(kube.ClientLog(log))
	return log
}
