package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/edge/imds"
)

// metadataAfter answers after some time; a request before that is answered by nothing, or is
// refused at once.
func metadataAfter(down time.Duration, silent bool) func(context.Context) (imds.Identity, error) {
	begin := time.Now()
	return func(ctx context.Context) (imds.Identity, error) {
		if time.Since(begin) >= down {
			return imds.Identity{Instance: "i-1"}, nil
		}
		if silent {
			<-ctx.Done()
			return imds.Identity{}, ctx.Err()
		}
		return imds.Identity{}, errors.New("connection refused")
	}
}

func TestInitWaitsSecondsForMetadata(t *testing.T) {
	const never = time.Hour
	for _, c := range []struct {
		why    string
		down   time.Duration
		silent bool
		atMost time.Duration
		found  bool
	}{
		{"a node without a cloud, or an outage that refuses requests", never, false, 5 * time.Second, false},
		{"a network that drops requests", never, true, 5 * time.Second, false},
		{"an EC2 instance with metadata that is down for a moment", 3 * time.Second, false, 4 * time.Second, true},
	} {
		t.Run(c.why, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				id, err := awaitIdentity(t.Context(), metadataAfter(c.down, c.silent))
				if (err == nil) != c.found || c.found && id.Instance != "i-1" {
					t.Errorf("%+v, %v", id, err)
				}
				if err != nil && !strings.Contains(err.Error(), "read instance metadata for ") {
					t.Errorf("%q does not say how long it was tried", err)
				}
				if took := time.Since(begin); took > c.atMost {
					t.Errorf("it took %s, want at most %s", took, c.atMost)
				}
			})
		})
	}
}

// programs makes files that stand for plugins.
func programs(t *testing.T, dir string, names ...string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// Without loopback no pod would start, so init must not succeed; without portmap only
// pods with a hostPort cannot, which the agent reports.
func TestInitIsRefusedOnlyIfTheNodeHasNoLoopback(t *testing.T) {
	for _, c := range []struct {
		what          string
		shipped, have []string
		says          string // empty: it succeeds
	}{
		{"both are shipped", []string{"loopback", "portmap"}, nil, ""},
		{"the node has both", nil, []string{"loopback", "portmap"}, ""},
		{"portmap is nowhere", []string{"loopback"}, nil, ""},
		{"loopback is nowhere", []string{"portmap"}, nil, "/loopback, without which the container runtime starts no pod"},
	} {
		t.Run(c.what, func(t *testing.T) {
			from, to := t.TempDir(), filepath.Join(t.TempDir(), "bin")
			programs(t, from, c.shipped...)
			programs(t, to, c.have...)
			err := installReference(t.Context(), from, to, slog.New(slog.DiscardHandler))
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("%v, want %q", err, c.says)
			}
			for _, name := range slices.Concat(c.shipped, c.have) {
				if err == nil && !exists(filepath.Join(to, name)) {
					t.Errorf("the node has no %s", name)
				}
			}
		})
	}
}

// A plugin that is there and cannot be run is as bad as none.
func TestInitIsRefusedIfTheLoopbackCannotBeRunAndNotReplaced(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	at := filepath.Join(to, "loopback")
	if err := os.WriteFile(at, []byte("not a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	err := installReference(t.Context(), from, to, log)
	if err == nil || !strings.Contains(err.Error(), at) {
		t.Fatalf("%v, want a refusal that names %s", err, at)
	}
	programs(t, from, "loopback")
	if err := installReference(t.Context(), from, to, log); err != nil {
		t.Errorf("with a loopback that replaces it: %v", err)
	}
}

// The agent says on such a node that nothing was changed.
func TestInitChangesNothingOnANodeOfAnIPv6Cluster(t *testing.T) {
	bin := t.TempDir()
	var log strings.Builder
	d := InitDeps{
		Programs: Programs{Plugin: "/proc/self/exe"}, Service: netip.MustParseAddr("fd30:1c53:5f8a::1"),
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	err := Init(t.Context(), config.Config{CNIBinDir: bin, Backend: config.BackendPodCIDR}, d)
	if err != nil || !strings.Contains(log.String(), "reason=IPv6Cluster") {
		t.Errorf("%v, log %q: want why the node is not prepared, and no error, so that the agent starts and reports it", err, log.String())
	}
	if left, err := os.ReadDir(bin); err != nil || len(left) > 0 {
		t.Errorf("installed %v, %v", left, err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
