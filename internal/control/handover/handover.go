// Package handover leaves the pods of a node to AWS's daemon: it writes the daemon's
// checkpoint, from which it learns which addresses are in use.
//
// It reads the tables endpoints, interfaces and addresses, and writes none. It reads the
// node's links and routes by edge/link, and drives one file on the node. core/handover decides its
// content. app/agent calls it when the agent leaves the node, and on request.
package handover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/core/handover"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// fileMode is that of the file as AWS's daemon writes it: by os.CreateTemp.
const fileMode = 0o600

// Links are the node's links; *link.Host is one.
type Links interface {
	Read(ctx context.Context, sysctls ...string) (hostnet.State, error)
}

// Deps is what the controller works with.
type Deps struct {
	Log   *slog.Logger
	State *state.Store
	Links Links
}

// Controller writes the checkpoint. Its methods may be called from any goroutine.
type Controller struct {
	Deps
	path string
	mu   sync.Mutex // held while the file is replaced
}

// New returns a controller of the checkpoint at path.
func New(path string, d Deps) *Controller { return &Controller{Deps: d, path: path} }

// Write replaces the checkpoint by one with every address in use. It may be repeated. A node
// without a cloud has no addresses that AWS's daemon could manage, and gets no file.
//
// Which pods run, the kernel says. The journal may be lost, and the ledger may have no
// interface because EC2 has not been read since.
func (c *Controller) Write(ctx context.Context) (handover.Plan, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have, err := c.Links.Read(ctx)
	if err != nil {
		return handover.Plan{}, fmt.Errorf("read the node's network: %w", err)
	}
	in := handover.Input{Endpoints: c.State.Endpoints(), Kernel: handover.KernelOf(have), Now: time.Now()}
	in.View, _ = c.State.View(in.Now)
	if !in.OfEC2() {
		return handover.Plan{}, nil
	}
	if in.Previous, err = c.read(); err != nil {
		return handover.Plan{}, err
	}
	plan := handover.New(in)
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return plan, fmt.Errorf("write the checkpoint of AWS's daemon: %w", err)
	}
	if err := atomicfile.Write(c.path, plan.Checkpoint.Encode(), fileMode); err != nil {
		return plan, fmt.Errorf("write the checkpoint of AWS's daemon: %w", err)
	}
	c.Log.Info("checkpoint of AWS's daemon written", "path", c.path, "addresses", len(plan.Checkpoint.Allocations),
		"unmanaged", plan.Unmanaged, "doubtful", plan.Doubtful, "unkeyed", plan.Unkeyed, "unnamed", plan.Unnamed, "on-node", plan.OnNode)
	return plan, nil
}

// Written reports whether there is a checkpoint.
func (c *Controller) Written() bool {
	_, err := os.Stat(c.path)
	return err == nil
}

// read returns the checkpoint that is there. A file that cannot be parsed is left alone:
// AWS's daemon does not start with it, so it gives no address to two pods.
func (c *Controller) read() (handover.Checkpoint, error) {
	raw, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return handover.Checkpoint{}, nil
	}
	if err != nil {
		return handover.Checkpoint{}, fmt.Errorf("read the checkpoint of AWS's daemon: %w", err)
	}
	previous, err := handover.Parse(raw)
	if err != nil {
		return handover.Checkpoint{}, fmt.Errorf("%s: %w; drain the node and delete the file", c.path, err)
	}
	return previous, nil
}
