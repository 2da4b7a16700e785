// Package cli is the command line of trunkline-lab: up, down, status, demo,
// exec, logs, kubectl, trunkline, aws and build.
//
// It reads the spec, makes the programs, starts the daemon of a lab and talks to
// it, and prints. What it prints about a lab is read from the lab at that
// moment. cmd/trunkline-lab calls it.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/spec"
)

// Exit codes, as `trunkline-lab --help` lists them.
const (
	ExitOK          = 0
	ExitFailed      = 1   // something did not work; the message says what
	ExitUsage       = 2   // the command line is wrong
	ExitRefused     = 3   // the machine or lab.yaml is not fit: nothing was started
	ExitNotRunning  = 4   // no such lab runs
	ExitInterrupted = 130 // Ctrl-C; what was begun is taken down again
)

// coded is an error with an exit code of its own.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

func refused(err error) error { return coded{err, ExitRefused} }

// grammar is every command with its flags.
type grammar struct {
	Name     string           `help:"Lab to speak to; left out, up and demo take the file's or 'lab', others the only one there is." env:"TRUNKLINE_LAB" placeholder:"LAB"`
	CacheDir string           `help:"Where built programs are kept; old ones that no lab uses go by themselves." env:"TRUNKLINE_CACHE" default:"${cache}" type:"path"`
	Source   string           `help:"Checkout to build from; left out, the one around the working directory." env:"TRUNKLINE_SOURCE" type:"existingdir" placeholder:"DIR"`
	Verbose  bool             `short:"v" help:"Also print what is done on the way, to stderr."`
	Version  kong.VersionFlag `help:"Print the version and end."`

	Up      upCmd      `cmd:"" help:"Bring a lab up, or to what lab.yaml says by now."`
	Down    downCmd    `cmd:"" help:"Take a lab down; nothing of it stays, also after a crash."`
	Status  statusCmd  `cmd:"" help:"Show a lab: phases, nodes, endpoints."`
	Demo    demoCmd    `cmd:"" help:"Up, then a tour: nodes, interfaces, pods, the connectivity test, one address's way."`
	Exec    execCmd    `cmd:"" help:"Run a command inside a node, or a shell."`
	Logs    logsCmd    `cmd:"" help:"Print logs of the lab's programs."`
	Kubectl kubectlCmd `cmd:"" passthrough:"" help:"Run the lab's kubectl with the lab's kubeconfig; every argument is kubectl's."`
	Product productCmd `cmd:"" name:"trunkline" passthrough:"" help:"Run the lab's trunkline against the lab; every argument is its."`
	AWS     awsCmd     `cmd:"" name:"aws" passthrough:"" help:"Run Debian's aws against the lab's EC2; every argument is its."`
	Build   buildCmd   `cmd:"" help:"Build what a lab runs and keep it in the cache; up does so by itself."`
	Serve   serveCmd   `cmd:"" hidden:"" help:"The daemon of one lab; up starts it."`
}

// session is what every command gets.
type session struct {
	ctx     context.Context
	g       *grammar
	version string
	out     io.Writer
	errs    io.Writer
	log     *slog.Logger
	tty     bool // out is a terminal
	// self is how this program was called, for the commands it proposes.
	self string
	// json says that out is for one JSON document, written that it is there.
	json, written bool
	// usage prints the help of the command.
	usage func() error
	// stateRoot holds the labs' state; a test's own elsewhere.
	stateRoot string
	// cleanup is the context of what must be done after a Ctrl-C too.
	cleanup context.Context
}

// Main runs the command line and returns the exit code.
func Main(args []string, version string, out, errs *os.File) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &session{
		ctx: ctx, version: version, out: out, errs: errs, stateRoot: daemon.StateRoot,
		cleanup: context.Background(), tty: term.IsTerminal(int(out.Fd())), self: calledAs(os.Args[0]),
	}
	// A second Ctrl-C ends the process at once.
	context.AfterFunc(ctx, stop)
	return s.main(args)
}

// calledAs is what to type to call this program again from the same directory.
func calledAs(argv0 string) string {
	if strings.Contains(argv0, "/") {
		return argv0
	}
	return "trunkline-lab"
}

// output is how a command writes what it found or did.
type output struct {
	Output string `short:"o" help:"text or json." enum:"text,json" default:"text"`
}

func (o output) wantsJSON() bool { return o.Output == "json" }

// writeJSON writes the one document of a command that was asked for JSON.
func (s *session) writeJSON(v any) error {
	s.written = true
	enc := json.NewEncoder(s.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// board shows progress: on stderr where out is for JSON.
func (s *session) board() *board {
	if s.json {
		return newBoard(s.errs, false, time.Now)
	}
	return newBoard(s.out, s.tty, time.Now)
}

func (s *session) main(args []string) (code int) {
	cacheDir, err := cache.DefaultDir()
	if err != nil {
		cacheDir = "/var/cache/trunkline"
	}
	s.g = &grammar{}
	ended := -1 // by --help or --version
	parser, err := kong.New(s.g,
		kong.Name("trunkline-lab"),
		kong.Description("An AWS VPC and a real Kubernetes in it, on this machine.\n\n"+rootExamples),
		kong.Vars{"cache": cacheDir, "version": s.version},
		kong.Writers(s.out, s.errs),
		kong.Exit(func(code int) { ended = code; panic(exitRequest{}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Help(helpWithExamples),
	)
	if err != nil {
		fmt.Fprintln(s.errs, "trunkline-lab:", err)
		return ExitFailed
	}
	defer func() {
		if r := recover(); r != nil {
			if _, asked := r.(exitRequest); !asked {
				panic(r)
			}
			code = ended
		}
	}()
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(s.errs, "trunkline-lab: %v\nTry: %s %s--help\n", err, s.self, commandOf(err))
		return ExitUsage
	}
	if c, ok := parsed.Selected().Target.Interface().(interface{ wantsJSON() bool }); ok {
		s.json = c.wantsJSON()
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
	s.log = slog.New(slog.NewTextHandler(s.errs, &slog.HandlerOptions{Level: level}))
	return s.exitCode(parsed.Run(s))
}

// exitRequest unwinds to main when kong has printed help and wants to end.
type exitRequest struct{}

// exitCode prints an error once and says how the process ends.
func (s *session) exitCode(err error) int {
	var own coded
	if err == nil {
		return ExitOK
	}
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		err = refused(fmt.Errorf("%w: run it as root (sudo)", err))
	}
	interrupted := s.ctx.Err() != nil && errors.Is(err, context.Canceled)
	if interrupted {
		fmt.Fprintln(s.errs, "interrupted")
	} else {
		fmt.Fprintln(s.errs, "trunkline-lab:", err)
	}
	if s.json && !s.written {
		_ = s.writeJSON(map[string]string{"error": err.Error()}) // stderr has it too
	}
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

// commandOf is the command a wrong line has come to, for the hint after it.
func commandOf(err error) string {
	var wrong *kong.ParseError
	if errors.As(err, &wrong) && wrong.Context.Selected() != nil {
		return wrong.Context.Selected().Name + " "
	}
	return ""
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
		err = refused(fmt.Errorf("open the cache: %w: give another place with --cache-dir", err))
	}
	return c, source, err
}
