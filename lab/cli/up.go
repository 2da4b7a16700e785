package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/image"
	"github.com/trunkline/trunkline/lab/preflight"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/lab/sweep"
)

type upCmd struct {
	bringUp
	output
}

// bringUp are the flags of what brings a lab up: up and demo.
type bringUp struct {
	File         string        `short:"f" help:"lab.yaml; without it, the default lab." type:"existingfile" placeholder:"FILE"`
	Nodes        *int          `help:"Number of nodes, instead of the file's." placeholder:"N"`
	InstanceType string        `help:"Type of every node, instead of the file's." placeholder:"TYPE"`
	NoDeploy     bool          `help:"Do not install Trunkline and CoreDNS: nodes stay NotReady."`
	Keep         bool          `help:"Leave what stands when something fails, to look at it."`
	Timeout      time.Duration `help:"For everything after the build." default:"5m"`
}

func (c *upCmd) Run(s *session) error {
	r, err := c.up(s)
	if err != nil {
		return err
	}
	st, err := s.status(r.Lab.Name)
	if err != nil {
		return err
	}
	if s.json {
		return s.writeJSON(st)
	}
	fmt.Fprintf(s.out, `
Lab %[1]s is up. Next:
  %[2]s kubectl get nodes -o wide
  %[2]s trunkline status
  %[2]s status
  %[2]s down
For any kubectl:
  export KUBECONFIG=%[3]s
`, r.Lab.Name, s.command(r.Lab.Name), st.Endpoints.Kubeconfig)
	return nil
}

// check says which flag cannot be.
func (c *bringUp) check() error {
	switch {
	case c.Nodes != nil && (*c.Nodes < 1 || *c.Nodes > spec.MaxNodes):
		return coded{fmt.Errorf("--nodes %d: from 1 to %d", *c.Nodes, spec.MaxNodes), ExitUsage}
	case c.Timeout <= 0:
		return coded{fmt.Errorf("--timeout %s: must be longer than nothing", c.Timeout), ExitUsage}
	}
	return nil
}

// resolve reads what the flags and the file ask for.
func (c *bringUp) resolve(name string) (spec.Resolved, error) {
	if err := c.check(); err != nil {
		return spec.Resolved{}, err
	}
	wish := choices{file: c.File, name: name, instanceType: c.InstanceType}
	if c.Nodes != nil {
		wish.nodes = *c.Nodes
	}
	return wish.resolve()
}

// up brings the lab to what is wanted and leaves nothing when it cannot.
func (c *bringUp) up(s *session) (record, error) {
	resolved, err := c.resolve(s.g.Name)
	if err != nil {
		return record{}, err
	}
	store, source, err := s.openCache()
	if err != nil {
		return record{}, err
	}
	stateDir := s.stateDir(resolved.Name)
	client := daemon.NewClient(stateDir)
	fresh, err := client.Silent(s.ctx)
	if err != nil {
		return record{}, err
	}
	if err := s.preflight(resolved, store.Dir(), fresh); err != nil {
		return record{}, err
	}
	b := s.board()
	defer b.close()
	p, err := s.prepare(b, store, source)
	if err != nil {
		b.abort(ending(s.ctx))
		return record{}, err
	}
	// Building takes long: another up of this lab may have come first meanwhile.
	if fresh, err = client.Silent(s.ctx); err != nil {
		return record{}, err
	}
	rec, err := c.record(s, resolved, p, fresh)
	if err == nil && fresh {
		fresh, err = s.startDaemon(s.ctx, resolved.Name)
	}
	if err == nil {
		err = c.converge(s, b, rec, fresh)
	}
	if err != nil {
		b.abort(ending(s.ctx))
	}
	if err != nil && fresh && !c.Keep {
		err = errors.Join(err, s.undo(b, resolved.Name))
	}
	return rec, err
}

// ending is why phases under way come to nothing.
func ending(ctx context.Context) string {
	if ctx.Err() != nil {
		return "interrupted"
	}
	return "given up"
}

// preflight refuses a machine that is not fit, before anything is made.
func (s *session) preflight(r spec.Resolved, cacheDir string, fresh bool) error {
	facts, err := preflight.Probe(s.ctx, preflight.Targets{CacheDir: cacheDir, StateRoot: s.stateRoot, Port: r.APIPort})
	if err != nil {
		return fmt.Errorf("look at this machine: %w", err)
	}
	problems := preflight.Check(preflight.Want{
		Lab: r.Name, VPC: r.Cloud.VPC.CIDRs[0], Services: r.ServiceCIDR, Nodes: len(r.Nodes), Port: r.APIPort, Running: !fresh,
	}, facts)
	if len(problems) == 0 {
		return nil
	}
	return refused(fmt.Errorf("this machine cannot run the lab:\n%w", problems))
}

// prepare builds what is missing and makes the images.
func (s *session) prepare(b *board, store *cache.Cache, source string) (parts, error) {
	p := parts{source: source}
	began := time.Now()
	var err error
	p.set, err = s.build(b, store)
	if err != nil {
		return p, err
	}
	b.set("prepare", "images")
	if p.images, err = image.ForLab(s.ctx, store, p.set); err == nil {
		p.imageStore, err = storeImages(s.ctx, store, p.set, p.images)
	}
	if err != nil {
		b.finish(markFailed, "prepare", "images", time.Since(began))
		return p, err
	}
	b.finish(markDone, "prepare", "programs and images, "+p.set.Version, time.Since(began))
	s.tidy(b, store)
	return p, nil
}

// record resolves everything and writes what later commands need. What a running
// lab cannot become is refused before that.
func (c *bringUp) record(s *session, r spec.Resolved, p parts, fresh bool) (record, error) {
	stateDir := s.stateDir(r.Name)
	want, err := plan(r, p, stateDir, !c.NoDeploy)
	if err != nil {
		return record{}, err
	}
	var earlier []daemon.Parts
	if !fresh {
		if err := s.becomes(want); err != nil {
			return record{}, err
		}
		if earlier, err = s.earlier(want); err != nil {
			return record{}, err
		}
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

// becomes refuses what the running lab of this name cannot change into.
func (s *session) becomes(want daemon.Lab) error {
	have, err := s.load(want.Name)
	if err != nil {
		return err
	}
	fixed, err := have.Lab.FixedIn(want)
	if err != nil || len(fixed) == 0 {
		return err
	}
	return refused(fmt.Errorf("lab %s runs and differs in %s: only nodes can change while it runs; "+
		"take it down first (%s down), change it through the EC2 API, or bring another up beside it (--name)",
		want.Name, strings.Join(fixed, ", "), s.command(want.Name)))
}

// earlier lists the programs by which ups before this one started parts of the
// running lab that is to become want, where they are others.
func (s *session) earlier(want daemon.Lab) ([]daemon.Parts, error) {
	have, err := s.load(want.Name)
	if err != nil {
		return nil, err
	}
	var out []daemon.Parts
	for _, p := range append(have.Earlier, have.Lab.Parts) {
		if p != want.Parts && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out, nil
}

// converge applies the lab; fresh says that it was not there before.
func (c *bringUp) converge(s *session, b *board, rec record, fresh bool) error {
	ctx, cancel := context.WithTimeout(s.ctx, c.Timeout)
	defer cancel()
	stateDir := s.stateDir(rec.Lab.Name)
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
		err = fmt.Errorf("%w\n(--keep leaves what stands, with its logs, to look at)", err)
	}
	return err
}

// event shows a change the daemon reports.
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

// startDaemon starts `serve` in a session of its own, so that it outlives this
// command, and waits until it answers. It reports false where another up's does:
// then the lab is not this command's to take back.
func (s *session) startDaemon(ctx context.Context, lab string) (ours bool, err error) {
	stateDir := s.stateDir(lab)
	program := labProgram(stateDir)
	if err := copySelf(program); err != nil {
		return true, fmt.Errorf("keep a copy of trunkline-lab: %w", err)
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

// undo takes a lab that did not come up away again; it has a budget of its own,
// for the command's context may have ended.
func (s *session) undo(b *board, lab string) error {
	ctx, cancel := context.WithTimeout(s.cleanup, downTime)
	defer cancel()
	began := time.Now()
	b.set("clean up", "")
	_, err := s.takeDown(ctx, lab, stopTime)
	if err != nil {
		b.finish(markFailed, "clean up", err.Error(), time.Since(began))
		return fmt.Errorf("clean up: %w; %s down finishes it", err, s.command(lab))
	}
	b.finish(markDone, "clean up", "nothing is left", time.Since(began))
	return nil
}

// takeDown stops the daemon if one answers, for as long as patience, and sweeps
// what is left.
func (s *session) takeDown(ctx context.Context, lab string, patience time.Duration) (sweep.Report, error) {
	stop, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := daemon.NewClient(s.stateDir(lab)).Stop(stop)
	if err != nil && !errors.Is(err, daemon.ErrNotRunning) {
		s.log.Warn("stop the daemon; sweeping instead", "lab", lab, "err", err)
	}
	return sweep.Sweep(ctx, sweep.Options{Lab: lab, StateDir: s.stateDir(lab), Log: s.log})
}
