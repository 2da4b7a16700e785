package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/osimage"
	"github.com/trunkline/trunkline/lab/preflight"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/lab/sweep"
)

type upCmd struct {
	bringUp
	output
}

// bringUp holds the flags of the commands that bring a lab up: up and demo.
type bringUp struct {
	File         string        `short:"f" help:"lab.yaml; without it, the default lab." type:"existingfile" placeholder:"FILE"`
	Nodes        *int          `help:"Number of nodes, instead of the file's." placeholder:"N"`
	InstanceType string        `help:"Type of every node, instead of the file's." placeholder:"TYPE"`
	NoDeploy     bool          `help:"Do not install Trunkline and CoreDNS: nodes stay NotReady."`
	Keep         bool          `help:"After a failure, keep the parts of the lab that are up, for debugging."`
	Timeout      time.Duration `help:"Time limit for everything after the build." default:"5m"`
}

func (c *upCmd) Run(s *session) error {
	r, err := c.up(s)
	if err != nil {
		return err
	}
	// The lab is up and stays. An interruption from here on must not be reported as that of
	// a lab that was removed.
	s.ctx = context.WithoutCancel(s.ctx)
	st, err := s.labs.status(s.ctx, r.Lab.Name)
	if err != nil {
		return err
	}
	if s.console.json {
		return s.console.writeJSON(st)
	}
	fmt.Fprintf(s.console.out, `
Lab %[1]s is up. Next:
  %[2]s kubectl get nodes -o wide
  %[2]s trunkline status
  %[2]s status
  %[2]s down
To use another kubectl:
  export KUBECONFIG=%[3]s
%[4]s`, r.Lab.Name, s.labs.command(r.Lab.Name), st.Endpoints.Kubeconfig, migrationHint(r, st.StateDir, s.labs.command(r.Lab.Name)))
	return nil
}

// check returns an error for the first flag with an invalid value.
func (c *bringUp) check() error {
	switch {
	case c.Nodes != nil && (*c.Nodes < 1 || *c.Nodes > spec.MaxNodes):
		return coded{fmt.Errorf("--nodes %d: must be from 1 to %d", *c.Nodes, spec.MaxNodes), ExitUsage}
	case c.Timeout <= 0:
		return coded{fmt.Errorf("--timeout %s: must be positive", c.Timeout), ExitUsage}
	}
	return nil
}

// resolve returns the lab that the flags and the file describe.
func (c *bringUp) resolve(name string) (spec.Resolved, error) {
	if err := c.check(); err != nil {
		return spec.Resolved{}, err
	}
	flags := choices{file: c.File, name: name, instanceType: c.InstanceType}
	if c.Nodes != nil {
		flags.nodes = *c.Nodes
	}
	return flags.resolve()
}

// up starts the lab, or changes the running one. If it cannot start a lab it removes what
// it created, unless --keep is given.
func (c *bringUp) up(s *session) (record, error) {
	resolved, err := c.resolve(s.g.Name)
	if err != nil {
		return record{}, err
	}
	own, err := ownImages(resolved.Images)
	if err != nil {
		return record{}, err
	}
	store, source, err := s.openCache()
	if err != nil {
		return record{}, err
	}
	stateDir := s.labs.stateDir(resolved.Name)
	client := daemon.NewClient(stateDir)
	fresh, err := client.NotRunning(s.ctx)
	if err != nil {
		return record{}, err
	}
	at := preflight.Targets{CacheDir: store.Dir(), StateRoot: s.labs.root, Port: resolved.APIPort}
	if err := checkMachine(s.ctx, resolved, at, fresh); err != nil {
		return record{}, err
	}
	b := s.console.board()
	defer b.close()
	p, err := s.builder(store, b).prepare(s.ctx, source)
	if err != nil {
		b.abort(abortReason(s.ctx))
		return record{}, err
	}
	p.own = own
	// Another up may have started this lab during the build.
	if fresh, err = client.NotRunning(s.ctx); err != nil {
		return record{}, err
	}
	rec, err := c.record(s, resolved, p, fresh)
	if err == nil && fresh {
		fresh, err = startDaemon(s.ctx, resolved.Name, stateDir)
	}
	if err == nil {
		err = c.converge(s, b, rec, fresh)
	}
	if err != nil {
		b.abort(abortReason(s.ctx))
	}
	if err != nil && fresh && !c.Keep {
		err = errors.Join(err, undo(s.cleanup, b, s.sweepOptions(resolved.Name), s.labs.command(resolved.Name)))
	}
	return rec, err
}

// abortReason is the reason shown for phases that did not finish.
func abortReason(ctx context.Context) string {
	if ctx.Err() != nil {
		return "interrupted"
	}
	return "aborted"
}

// checkMachine refuses an unsuitable machine before anything is created.
func checkMachine(ctx context.Context, r spec.Resolved, at preflight.Targets, fresh bool) error {
	facts, err := preflight.Probe(ctx, at)
	if err != nil {
		return fmt.Errorf("probe this machine: %w", err)
	}
	problems := preflight.Check(preflight.Want{
		Lab: r.Name, VPC: r.Cloud.VPC.CIDRs[0], Services: r.ServiceCIDR, Nodes: len(r.Nodes), Port: r.APIPort, Running: !fresh,
		Cloud: !r.NoCloud, NetworkDaemons: slices.ContainsFunc(r.Nodes, func(n spec.ResolvedNode) bool {
			image, _ := osimage.Lookup(n.Image)
			return image.Network.Daemon
		}),
	}, facts)
	if len(problems) == 0 {
		return nil
	}
	return refused(fmt.Errorf("this machine cannot run the lab:\n%w", problems))
}

// record writes the lab's record and its deploy directory. It first refuses a change that
// a running lab cannot make.
func (c *bringUp) record(s *session, r spec.Resolved, p parts, fresh bool) (record, error) {
	stateDir := s.labs.stateDir(r.Name)
	want, err := plan(r, p, stateDir, !c.NoDeploy)
	if err != nil {
		return record{}, err
	}
	var earlier []daemon.Parts
	if !fresh {
		have, err := s.labs.load(want.Name)
		if err != nil {
			return record{}, err
		}
		if err := have.accept(want, s.labs.command(want.Name)); err != nil {
			return record{}, err
		}
		earlier = have.partsBefore(want)
	}
	if err := os.MkdirAll(filepath.Join(stateDir, "log"), 0o700); err != nil {
		return record{}, err
	}
	rec := record{
		Lab: want, Source: p.source, Version: p.set.Version,
		Workload: p.images.Workload.Refs[0], WorkloadPath: p.set.Workload, Product: p.set.Trunkline,
		Earlier: earlier,
	}
	return rec, errors.Join(writeDeploy(want, p, stateDir), rec.save(stateDir))
}

// converge applies the lab; fresh if it was not running before.
func (c *bringUp) converge(s *session, b *board, rec record, fresh bool) error {
	ctx, cancel := context.WithTimeout(s.ctx, c.Timeout)
	defer cancel()
	stateDir := s.labs.stateDir(rec.Lab.Name)
	err := daemon.NewClient(stateDir).Apply(ctx, rec.Lab, func(e daemon.Event) { b.event(e) })
	if err == nil && rec.Lab.World.VPC.InternetGateway {
		err = startOutside(ctx, rec, stateDir)
	}
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil:
		return s.ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("lab %s is not up after %s (--timeout); log: %s", rec.Lab.Name, c.Timeout, daemon.LogPath(stateDir))
	}
	err = fmt.Errorf("bring up lab %s: %w\n(log: %s)", rec.Lab.Name, err, daemon.LogPath(stateDir))
	if fresh && !c.Keep {
		err = fmt.Errorf("%w\n(--keep keeps what is up, with its logs)", err)
	}
	return err
}

// event shows an event of the daemon.
func (b *board) event(e daemon.Event) {
	name := string(e.Phase)
	switch e.State {
	case daemon.StatePending, daemon.StateRunning:
		b.set(name, e.Detail)
	case daemon.StateDone:
		b.finish(markDone, name, e.Detail, e.Elapsed)
	case daemon.StateSkipped:
		b.finish(markSkipped, name, e.Detail, e.Elapsed)
	case daemon.StateFailed:
		b.finish(markFailed, name, e.Error, e.Elapsed)
	}
}

// startDaemon starts `serve` in its own session, so that it outlives this command, and
// waits until it answers. It returns false if the daemon of another up answers; this
// command must then not remove the lab.
func startDaemon(ctx context.Context, lab, stateDir string) (ours bool, err error) {
	program := labProgram(stateDir)
	if err := copySelf(program); err != nil {
		return true, fmt.Errorf("copy trunkline-lab into the state directory: %w", err)
	}
	return daemon.Spawn(ctx, daemon.Detached{
		Name: lab, StateDir: stateDir, Argv: []string{program, "--name", lab, "serve"},
	})
}

// copySelf copies the running program to path.
func copySelf(path string) error {
	self, err := os.Executable()
	if err != nil || self == path {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	in, err := os.Open(self)
	if err != nil {
		return err
	}
	defer in.Close()
	return atomicfile.WriteFrom(path, in, 0o755)
}

// undo removes a lab that did not come up, within its own timeout: ctx is not the context of
// the command, which may have ended. command selects the lab.
func undo(ctx context.Context, b *board, lab sweep.Options, command string) error {
	ctx, cancel := context.WithTimeout(ctx, downTime)
	defer cancel()
	start := time.Now()
	b.set("clean up", "")
	if _, err := takeDown(ctx, lab, stopTime); err != nil {
		b.finish(markFailed, "clean up", err.Error(), time.Since(start))
		return fmt.Errorf("clean up: %w; finish it with: %s down", err, command)
	}
	b.finish(markDone, "clean up", "removed", time.Since(start))
	return nil
}
