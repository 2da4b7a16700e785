// Package cli is the command line of trunkline-lab: up, down, status, demo,
// exec, logs, kubectl, trunkline, aws and build.
//
// It reads lab.yaml, builds the programs, starts the daemon of a lab and calls it. Its
// output about a lab is read from the lab, never from a cache. cmd/trunkline-lab calls
// it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/lab/sweep"
)

// Exit codes, as `trunkline-lab --help` lists them.
const (
	ExitOK          = 0
	ExitFailed      = 1   // the command failed
	ExitUsage       = 2   // the command line is invalid
	ExitRefused     = 3   // the machine or lab.yaml is unsuitable; nothing was started
	ExitNotRunning  = 4   // the lab is not running
	ExitInterrupted = 130 // Ctrl-C; a lab that was being started is removed
)

// coded is an error with its exit code.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

func refused(err error) error { return coded{err, ExitRefused} }

// grammar is every command with its flags.
type grammar struct {
	Name     string           `help:"Name of the lab. Default: for up and demo that of the file or 'lab', for other commands the only lab." env:"TRUNKLINE_LAB" placeholder:"LAB"`
	CacheDir string           `help:"Directory of built programs; old ones that no lab uses are removed automatically." env:"TRUNKLINE_CACHE" default:"${cache}" type:"path"`
	Source   string           `help:"Checkout to build from. Default: the one that contains the working directory." env:"TRUNKLINE_SOURCE" type:"existingdir" placeholder:"DIR"`
	Verbose  bool             `short:"v" help:"Also print debug logs to stderr."`
	Version  kong.VersionFlag `help:"Print the version and exit."`

	Up        upCmd        `cmd:"" help:"Bring a lab up, or change a running lab to match lab.yaml."`
	Down      downCmd      `cmd:"" help:"Take a lab down and remove all of it, also after a crash."`
	Status    statusCmd    `cmd:"" help:"Show a lab: phases of the last up; nodes and endpoints, and whether they are ready now."`
	Demo      demoCmd      `cmd:"" help:"Up, then a tour: nodes, interfaces, pods, the connectivity test, the path of an address."`
	Exec      execCmd      `cmd:"" help:"Run a command or a shell in a node."`
	Logs      logsCmd      `cmd:"" help:"Print logs of the lab's programs."`
	Kubectl   kubectlCmd   `cmd:"" passthrough:"" help:"Run the lab's kubectl with the lab's kubeconfig; all arguments are passed to it."`
	Product   productCmd   `cmd:"" name:"trunkline" passthrough:"" help:"Run the lab's trunkline against the lab; all arguments are passed to it."`
	AWS       awsCmd       `cmd:"" name:"aws" passthrough:"" help:"Run Debian's aws against the lab's EC2; all arguments are passed to it."`
	APIFaults apiFaultsCmd `cmd:"" name:"api-faults" help:"Show or replace faults of the Kubernetes API, in a lab with kubernetes.apiProxy."`
	Build     buildCmd     `cmd:"" help:"Build the programs of a lab into the cache; up does so automatically."`
	Serve     serveCmd     `cmd:"" hidden:"" help:"The daemon of one lab; up starts it."`
}

// session is one run of a command: its inputs, and what every command uses.
type session struct {
	ctx context.Context
	// cleanup is the context of work that Ctrl-C does not cancel.
	cleanup context.Context
	g       *grammar
	version string
	console *console
	labs    labs
	log     *slog.Logger
	// usage prints the help of the command.
	usage func() error
}

// Main runs the command line and returns the exit code.
func Main(args []string, version string, out, errs *os.File) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &session{
		ctx: ctx, cleanup: context.Background(), version: version,
		console: &console{out: out, errs: errs, tty: term.IsTerminal(int(out.Fd()))},
		labs:    labs{root: daemon.StateRoot, self: calledAs(os.Args[0])},
	}
	// A second Ctrl-C ends the process at once.
	context.AfterFunc(ctx, stop)
	return s.main(args)
}

// calledAs returns the command that starts this program again from the same directory.
func calledAs(argv0 string) string {
	if strings.Contains(argv0, "/") {
		return argv0
	}
	return "trunkline-lab"
}

// output is the flag for the output format.
type output struct {
	Output string `short:"o" help:"Output format: text or json." enum:"text,json" default:"text"`
}

func (o output) wantsJSON() bool { return o.Output == "json" }

func (s *session) main(args []string) (code int) {
	cacheDir, err := cache.DefaultDir()
	if err != nil {
		cacheDir = "/var/cache/trunkline"
	}
	s.g = &grammar{}
	exitCode := -1 // set by --help and --version
	parser, err := kong.New(s.g,
		kong.Name("trunkline-lab"),
		kong.Description("An AWS VPC and a real Kubernetes in it, on this machine.\n\n"+rootExamples),
		kong.Vars{"cache": cacheDir, "version": s.version},
		kong.Writers(s.console.out, s.console.errs),
		kong.Exit(func(code int) { exitCode = code; panic(exitRequest{}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Help(helpWithExamples),
	)
	if err != nil {
		fmt.Fprintln(s.console.errs, "trunkline-lab:", err)
		return ExitFailed
	}
	defer func() {
		if r := recover(); r != nil {
			if _, requested := r.(exitRequest); !requested {
				panic(r)
			}
			code = exitCode
		}
	}()
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(s.console.errs, "trunkline-lab: %v\nTry: %s %s--help\n", err, s.labs.self, commandOf(err))
		return ExitUsage
	}
	if c, ok := parsed.Selected().Target.Interface().(interface{ wantsJSON() bool }); ok {
		s.console.json = c.wantsJSON()
	}
	level := slog.LevelWarn
	if s.g.Verbose {
		level = slog.LevelDebug
	}
	if s.g.Name != "" {
		if err := spec.CheckName(s.g.Name); err != nil {
			return s.exitCode(coded{err, ExitUsage})
		}
	}
	s.usage = func() error { return parsed.PrintUsage(false) }
	s.log = slog.New(slog.NewTextHandler(s.console.errs, &slog.HandlerOptions{Level: level}))
	return s.exitCode(parsed.Run(s))
}

// exitRequest is the panic that unwinds to main after kong has printed help.
type exitRequest struct{}

// exitCode prints an error and returns the exit code.
func (s *session) exitCode(err error) int {
	var own coded
	if err == nil {
		return ExitOK
	}
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		err = refused(fmt.Errorf("%w: run it as root (sudo)", err))
	}
	interrupted := s.ctx.Err() != nil && errors.Is(err, context.Canceled)
	s.console.fail(err, interrupted)
	switch {
	case interrupted:
		return ExitInterrupted
	case errors.As(err, &own):
		return own.code
	case errors.Is(err, daemon.ErrNotRunning):
		return ExitNotRunning
	case errors.Is(err, cache.ErrNoSource), errors.Is(err, cache.ErrNoGo), errors.Is(err, cache.ErrOldGo):
		return ExitRefused
	}
	return ExitFailed
}

// commandOf returns the command in an invalid command line, for the hint to its help.
func commandOf(err error) string {
	var parseErr *kong.ParseError
	if errors.As(err, &parseErr) && parseErr.Context.Selected() != nil {
		return parseErr.Context.Selected().Name + " "
	}
	return ""
}

// lab returns the lab that the command selects.
func (s *session) lab() (string, error) { return s.labs.selected(s.g.Name) }

// sweepOptions returns what a sweep needs to find all of a lab.
func (s *session) sweepOptions(lab string) sweep.Options {
	return sweep.Options{Lab: lab, StateDir: s.labs.stateDir(lab), Log: s.log}
}

// openCache finds the checkout and opens the cache for it.
func (s *session) openCache() (*cache.Cache, string, error) {
	start := s.g.Source
	if start == "" {
		start = "."
	}
	source, err := cache.FindSource(start)
	if err != nil {
		return nil, "", err
	}
	c, err := cache.Open(s.g.CacheDir, source, s.log)
	if err != nil {
		err = refused(fmt.Errorf("open the cache: %w: choose another directory with --cache-dir", err))
	}
	return c, source, err
}
