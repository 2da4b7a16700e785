//go:build netns

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/trunkline/trunkline/internal/edge/link"
)

// asAgent is the environment variable that makes this test binary start as trunkline does.
const asAgent = "TRUNKLINE_TEST_AS_AGENT"

func TestMain(m *testing.M) {
	if authority := os.Getenv(withoutFiles); authority != "" {
		os.Exit(asProgramWithoutFiles(authority))
	}
	if os.Getenv(asAgent) == "" {
		os.Exit(m.Run())
	}
	keepMainThread()
	if err := enterManyNamespaces(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// enterManyNamespaces switches many threads to other network namespaces, and returns an
// error if the process is no longer in its own. The kernel, and a command executed in
// the agent's container, take the main thread's namespace for the process's.
func enterManyNamespaces() error {
	const own = "/proc/self/ns/net"
	before, err := os.Readlink(own)
	if err != nil {
		return err
	}
	for range 8 {
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() { _ = link.Probe(context.Background()) }) // its result does not matter here
		}
		all.Wait()
		after, err := os.Readlink(own)
		if err != nil {
			return err
		}
		if after != before {
			return fmt.Errorf("the process started in %s and is now in %s", before, after)
		}
	}
	return nil
}

func TestTheProcessStaysInItsNamespaceWhileItsThreadsEnterOthers(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), asAgent+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, strings.TrimSpace(string(out)))
	}
}
