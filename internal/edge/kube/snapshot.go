package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// Snapshot is the cache as it is saved to disk.
type Snapshot struct {
	Version int       `json:"version"`
	SavedAt time.Time `json:"savedAt"`
	Node    Node      `json:"node"`
	Pods    []Pod     `json:"pods"`
	// Freeze is the brake in force when the snapshot was taken.
	Freeze       trunkline.Freeze `json:"freeze,omitempty"`
	FreezeReason string           `json:"freezeReason,omitempty"`
}

// snapshotVersion is the layout this build writes and reads.
const snapshotVersion = 1

// saveEvery is the minimum interval between two writes of the snapshot.
const saveEvery = time.Second

// LoadSnapshot reads a snapshot. A missing file is an empty snapshot; a damaged one, or
// one of another version, is an error, and the caller starts without a snapshot.
func LoadSnapshot(path string) (Snapshot, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, nil
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("read snapshot: %w", err)
	}
	var s Snapshot
	if err := json.Unmarshal(text, &s); err != nil {
		return Snapshot{}, fmt.Errorf("decode snapshot %s: %w", path, err)
	}
	if s.Version != snapshotVersion {
		return Snapshot{}, fmt.Errorf("snapshot %s has version %d, this build reads %d", path, s.Version, snapshotVersion)
	}
	return s, nil
}

// SaveSnapshot writes s so that a crash leaves either the old file or the new
// one, whole. One process writes at a time, and removes what a killed one left.
func SaveSnapshot(path string, s Snapshot) error {
	s.Version = snapshotVersion
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode snapshot: %w", err)
	}
	if err := errors.Join(atomicfile.RemoveLeftovers(path), atomicfile.Write(path, text, 0o600)); err != nil {
		return fmt.Errorf("write snapshot %s: %w", path, err)
	}
	return nil
}

// saveSnapshots writes the snapshot after changes, at most once per saveEvery.
func (c *Cluster) saveSnapshots(ctx context.Context) {
	if c.opts.SnapshotPath == "" {
		return
	}
	pause := time.NewTicker(saveEvery)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.dirty:
		}
		if err := SaveSnapshot(c.opts.SnapshotPath, c.snapshot(time.Now())); err != nil {
			c.opts.Log.Warn("cluster snapshot not saved", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

func (c *Cluster) snapshot(now time.Time) Snapshot {
	s := Snapshot{SavedAt: now, Pods: c.Pods()}
	s.Node, _ = c.Node()
	s.Freeze, s.FreezeReason = c.Freeze()
	return s
}
