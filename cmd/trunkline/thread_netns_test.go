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

// asAgent makes this test binary a process that begins as trunkline does.
const asAgent = "TRUNKLINE_TEST_AS_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) == "" {
		os.Exit(m.Run())
	}
	keepMainThread()
	if err := enterManyNamespaces(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// enterManyNamespaces works in other namespaces until every thread has had its
// turn, and reports whether the process is still where it began: to the kernel,
// and to whoever executes a command in the agent's container, that is where its
// main thread is.
func enterManyNamespaces() error {
	const own = "/proc/self/ns/net"
	before, err := os.Readlink(own)
	if err != nil {
		return err
	}
	for range 8 {
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() { _ = link.Probe(context.Background()) }) // what it finds is not the question
		}
		all.Wait()
		after, err := os.Readlink(own)
		if err != nil {
			return err
		}
		if after != before {
			return fmt.Errorf("the process began in %s and is in %s", before, after)
		}
	}
	return nil
}

func TestTheProcessStaysInItsNamespaceWhileThreadsVisitOthers(t *testing.T) {
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
