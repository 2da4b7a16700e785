package cnirpc

import (
	"bytes"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"
)

// pair is a connection of the plugin, and the agent's end of it. The caller closes the first.
func pair(t *testing.T, deadline time.Time) (plugin *conn, agent *os.File) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.SetNonblock(fds[1], true)
	}
	if err != nil {
		t.Fatal(err)
	}
	agent = os.NewFile(uintptr(fds[1]), "agent")
	t.Cleanup(func() { _ = agent.Close() })
	return &conn{fds[0], deadline}, agent
}

// It does not fit into the socket's buffer, so that it is sent in several parts.
func TestALongRequestIsSentWholeWithItsNamespace(t *testing.T) {
	netns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer netns.Close()
	raw := bytes.Repeat([]byte("0123456789"), 100_000)
	for name, beside := range map[string]*os.File{"with a namespace": netns, "without": nil} {
		plugin, agent := pair(t, time.Now().Add(20*time.Second))
		if err := agent.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		read := make(chan []byte, 1)
		go func() {
			got, _ := io.ReadAll(agent) // what is missing shows
			read <- got
		}()
		if err := errors.Join(plugin.send(raw, beside), plugin.close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := <-read; !bytes.Equal(got, raw) {
			t.Errorf("%s: %d bytes arrived of %d", name, len(got), len(raw))
		}
	}
}

func TestARequestThatTheAgentDoesNotTakeIsAnError(t *testing.T) {
	netns, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer netns.Close()
	for name, beside := range map[string]*os.File{"with a namespace": netns, "without": nil} {
		plugin, agent := pair(t, time.Now().Add(20*time.Second))
		agent.Close()
		if err := plugin.send([]byte("x\n"), beside); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s, to an agent that is gone: %v", name, err)
		}
		if err := plugin.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAnAgentThatNeitherReadsNorAnswersIsWaitedForUntilTheDeadline(t *testing.T) {
	for name, do := range map[string]func(*conn) error{
		"send": func(c *conn) error { return c.send(make([]byte, 10<<20), nil) }, // more than the socket's buffer
		"read": func(c *conn) error { _, err := c.Read(make([]byte, 1)); return err },
	} {
		deadline := time.Now().Add(30 * time.Millisecond)
		plugin, _ := pair(t, deadline)
		if err := do(plugin); !errors.Is(err, syscall.EAGAIN) || time.Now().Before(deadline) {
			t.Errorf("%s: %v, %s before the deadline; want EAGAIN after it", name, err, time.Until(deadline))
		}
		if err := do(plugin); !errors.Is(err, syscall.EAGAIN) { // at once
			t.Errorf("%s after the deadline: %v", name, err)
		}
		if err := plugin.close(); err != nil {
			t.Error(err)
		}
	}
}
