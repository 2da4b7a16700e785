package workload

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Process holds the streams and the environment of the process.
type Process struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Environ        []string
}

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the applet failed or its result is false
	exitUsage  = 2 // the command line is invalid
)

// errUsage is wrapped by errors of the command line.
var errUsage = errors.New("usage")

func usagef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, args...))
}

// applet is one of the programs in the binary. If ok is false, the exit code is 1.
type applet func(ctx context.Context, args []string, p Process) (ok bool, err error)

func applets() map[string]applet {
	return map[string]applet{
		"serve": serve, "dial": dial, "observe": observe, "attempt": attempt, "tar": tarApplet, "test": testApplet, "[": bracketApplet,
		"cat": cat, "ls": ls, "sleep": sleep, "env": env, "hostname": hostname,
		"true":  func(context.Context, []string, Process) (bool, error) { return true, nil },
		"false": func(context.Context, []string, Process) (bool, error) { return false, nil },
	}
}

// Links returns the names of the applets that the image has in /bin.
func Links() []string {
	var out []string
	for name := range applets() {
		if !slices.Contains([]string{"serve", "dial", "observe", "attempt"}, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Run runs the applet named by argv[0] or else by the first argument, and returns the exit
// code.
func Run(ctx context.Context, argv []string, p Process) int {
	name, args := filepath.Base(argv[0]), argv[1:]
	run, ok := applets()[name]
	if !ok && len(args) > 0 {
		name, args = args[0], args[1:]
		run, ok = applets()[name]
	}
	if !ok {
		fmt.Fprintf(p.Stderr, "usage: workload %s\n", strings.Join(slices.Sorted(maps.Keys(applets())), "|"))
		return exitUsage
	}
	ok, err := run(ctx, args, p)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitUsage
	case errors.Is(err, errUsage):
		fmt.Fprintf(p.Stderr, "%s: %v\n", name, err)
		return exitUsage
	case err != nil:
		fmt.Fprintf(p.Stderr, "%s: %v\n", name, err)
		return exitFailed
	case !ok:
		return exitFailed
	}
	return exitOK
}

// lookup returns a variable of the process's environment.
func (p Process) lookup(name string) string {
	for _, kv := range p.Environ {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// podName returns POD_NAME or else the host name, which Kubernetes sets to the pod's name.
func (p Process) podName() string {
	if name := p.lookup("POD_NAME"); name != "" {
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// newFlags returns a flag set that reports errors to stderr and never exits.
func newFlags(name string, p Process) *flag.FlagSet {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(p.Stderr)
	return fs
}

func parseFlags(fs *flag.FlagSet, args []string) error {
	err := fs.Parse(args)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		return usagef("%v", err)
	}
	return err
}
