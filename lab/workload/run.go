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

// Process is what Run is given of the process it is.
type Process struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Environ        []string
}

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // it ran and the answer is no
	exitUsage  = 2 // the command line is wrong
)

// errUsage marks an error of the command line.
var errUsage = errors.New("usage")

func usagef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, args...))
}

// applet is one of the programs in the binary. A false answer ends with 1.
type applet func(ctx context.Context, args []string, p Process) (ok bool, err error)

func applets() map[string]applet {
	return map[string]applet{
		"serve": serve, "dial": dial, "tar": tarApplet, "test": testApplet, "[": bracketApplet,
		"cat": cat, "ls": ls, "sleep": sleep, "env": env, "hostname": hostname,
		"true":  func(context.Context, []string, Process) (bool, error) { return true, nil },
		"false": func(context.Context, []string, Process) (bool, error) { return false, nil },
	}
}

// Links are the names by which the image offers its applets in /bin.
func Links() []string {
	var out []string
	for name := range applets() {
		if name != "serve" && name != "dial" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Run picks the applet by the name the program was called by, else by its first
// argument, and returns the exit code.
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
	yes, err := run(ctx, args, p)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitUsage
	case errors.Is(err, errUsage):
		fmt.Fprintf(p.Stderr, "%s: %v\n", name, err)
		return exitUsage
	case err != nil:
		fmt.Fprintf(p.Stderr, "%s: %v\n", name, err)
		return exitFailed
	case !yes:
		return exitFailed
	}
	return exitOK
}

// lookup finds a variable of the process's environment.
func (p Process) lookup(name string) string {
	for _, kv := range p.Environ {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// podName is POD_NAME, else the host name, which Kubernetes sets to the pod's.
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

// newFlags is a flag set that reports to stderr and never exits.
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
