package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// policySnapshot is policies and namespaces as they are saved to disk.
type policySnapshot struct {
	Version    int                   `json:"version"`
	SavedAt    time.Time             `json:"savedAt"`
	Policies   []savedPolicy         `json:"policies"`
	Namespaces map[string]labels.Set `json:"namespaces"`
}

// savedPolicy has the API's spec, which later builds can read, and not what this build
// makes of it.
type savedPolicy struct {
	Namespace  string          `json:"namespace"`
	Name       string          `json:"name"`
	UID        string          `json:"uid"`
	Generation int64           `json:"generation"`
	Written    time.Time       `json:"written"`
	Spec       json.RawMessage `json:"spec"`
}

// policySnapshotVersion is the layout of both files that this build writes and reads.
const policySnapshotVersion = 1

// loadSnapshot enters what the last agent of the node saved.
func (p *PolicyObjects) loadSnapshot() {
	if err := p.loadObjects(); err != nil {
		p.setAside(p.opts.SnapshotPath, err)
		return
	}
	if len(p.known.policies) == 0 && !p.opts.KeepPods { // a file of pods is older than the last policy's end
		if err := os.Remove(p.peersPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.opts.Log.Warn("pods of the policy snapshot not removed", "path", p.peersPath(), "err", err)
		}
		return
	}
	if err := p.loadPeers(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.setAside(p.peersPath(), err)
	}
}

// RemovePolicySnapshot removes the files of a snapshot: an agent that does not keep them up to
// date must not leave them to a later one. Removing the absent is success.
func RemovePolicySnapshot(path string) error {
	for _, file := range []string{path, path + peersSuffix} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove policy snapshot: %w", err)
		}
	}
	return nil
}

// setAside moves a file that cannot be used, so that it can be examined and is not read again.
func (p *PolicyObjects) setAside(path string, why error) {
	aside := path + ".corrupt"
	text, err := os.ReadFile(path)
	if err == nil {
		err = errors.Join(atomicfile.Write(aside, text, 0o600), os.Remove(path))
	}
	p.opts.Log.Error("policy snapshot not used", "path", path, "aside", aside, "err", errors.Join(why, err))
}

// loadObjects reads policies and namespaces; a missing file is no error.
func (p *PolicyObjects) loadObjects() error {
	text, err := os.ReadFile(p.opts.SnapshotPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read policy snapshot: %w", err)
	}
	var s policySnapshot
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("decode policy snapshot: %w", err)
	}
	if s.Version != policySnapshotVersion {
		return fmt.Errorf("policy snapshot has version %d, this build reads %d", s.Version, policySnapshotVersion)
	}
	list := make([]policyRow, 0, len(s.Policies))
	for _, saved := range s.Policies {
		row, err := saved.row()
		if err != nil {
			return err
		}
		list = append(list, row)
	}
	for _, row := range list {
		p.known.setPolicy(row)
	}
	for name, set := range s.Namespaces {
		p.known.setNamespace(namespaceRow{name: name, labels: set})
	}
	p.known.seeded = true
	return nil
}

func (s savedPolicy) row() (policyRow, error) {
	np := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID),
		Generation: s.Generation, CreationTimestamp: metav1.NewTime(s.Written),
	}}
	if s.Namespace == "" || s.Name == "" || len(s.Spec) == 0 {
		return policyRow{}, fmt.Errorf("decode policy %s/%s of the snapshot: no name or no spec", s.Namespace, s.Name)
	}
	if err := json.Unmarshal(s.Spec, &np.Spec); err != nil {
		return policyRow{}, fmt.Errorf("decode policy %s/%s of the snapshot: %w", s.Namespace, s.Name, err)
	}
	return policyRowFrom(&np)
}

// saveObjects saves policies and namespaces after changes, at most once per saveEvery, once
// the API server has listed both.
func (p *PolicyObjects) saveObjects(ctx context.Context) {
	saveAfter(ctx, p.dirty, func(context.Context) time.Duration {
		p.mu.Lock()
		s, listed := p.known.snapshot(time.Now()), p.known.listed()
		p.mu.Unlock()
		if !listed {
			return 0
		}
		text, err := json.Marshal(s)
		if err == nil {
			path := p.opts.SnapshotPath
			err = errors.Join(atomicfile.RemoveLeftovers(path), atomicfile.Write(path, text, 0o600))
		}
		if err != nil {
			p.opts.Log.Warn("policy snapshot not saved", "path", p.opts.SnapshotPath, "err", err)
		}
		return saveEvery
	})
}

// saveAfter calls save after each signal; save returns the pause that follows it.
// When ctx ends, it is called once more if there was a signal since: the next agent begins with what
// is saved. That call has the time that its context has.
func saveAfter(ctx context.Context, changes <-chan struct{}, save func(context.Context) time.Duration) {
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveLastWithin)
		defer cancel()
		select {
		case <-changes:
			save(last)
		default:
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
		}
		pause := time.NewTimer(save(context.WithoutCancel(ctx)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}

// saveLastWithin bounds the write when the agent ends. The agent's pod has 20 s to end
// (terminationGracePeriodSeconds in deploy/base/agent.yaml).
const saveLastWithin = 3 * time.Second
