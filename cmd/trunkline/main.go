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
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/edge/kube"
	"github.com/trunkline/trunkline/internal/kernel/timerslack"
)

// version is set by the linker.
var version = "dev"

// process is the part of the process's environment that commands use.
type process struct {
	ctx      context.Context
	args     []string
	out, err io.Writer
}

// errFailed ends the program with status 1. The command has already printed why.
var errFailed = errors.New("failed")

// usageError is an error in the command line, such as an unknown flag or a value out of range.
type usageError struct{ error }

func wrongUsage(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// keepMainThread locks the main goroutine to the process's main thread, so that no
// other goroutine runs on it. Goroutines of the agent switch their thread to pods'
// network namespaces, and a thread that cannot switch back is terminated. The main
// thread cannot be terminated, and its namespace (/proc/PID/ns/net) is the one that
// commands executed in the container join.
func keepMainThread() { runtime.LockOSThread() }

// timerSlack is how late the agent's timers may be. The shortest interval of its loops is 20 ms.
const timerSlack = time.Millisecond

// coalesceTimers saves processor time of the agent. The other commands are not worth a second
// start.
func coalesceTimers() {
	if len(os.Args) < 2 || os.Args[1] != "agent" {
		return
	}
	if err := timerslack.Set(timerSlack, os.Args, os.Environ()); err != nil {
		fmt.Fprintln(os.Stderr, "trunkline agent: goes on with the timer slack that it has:", err)
	}
}

func main() {
	coalesceTimers()
	keepMainThread()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := program()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	if errors.Is(err, errFailed) {
		return 1
	}
	if o := cmd.Flags().Lookup("output"); o != nil && o.Value.String() == "json" {
		_ = cli.WriteJSON(stdout, map[string]string{"error": err.Error()}) // stderr has it too
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		fmt.Fprintln(stderr, "trunkline: interrupted")
		return 130
	}
	fmt.Fprintln(stderr, "trunkline:", err)
	if usage := (usageError{}); errors.As(err, &usage) {
		fmt.Fprintf(stderr, "try: %s --help\n", cmd.CommandPath())
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

func versionCommand() *cobra.Command {
	return leaf(versionCmd{}, &cobra.Command{Use: "version", Short: "Print the version."})
}

type versionCmd struct{}

func (versionCmd) bind(*pflag.FlagSet) {}

// run prints the version.
func (versionCmd) run(p process) error {
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
