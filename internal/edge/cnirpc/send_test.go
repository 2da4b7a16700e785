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

// pair is a connection of the plugin, and the agent's end of it.
func pair(t *testing.T) (plugin, agent *os.File) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	plugin, agent = os.NewFile(uintptr(fds[0]), "plugin"), os.NewFile(uintptr(fds[1]), "agent")
	t.Cleanup(func() { _ = errors.Join(plugin.Close(), agent.Close()) })
	return plugin, agent
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
		plugin, agent := pair(t)
		if err := agent.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		read := make(chan []byte, 1)
		go func() {
			got, _ := io.ReadAll(agent) // what is missing shows
			read <- got
		}()
		if err := errors.Join(send(plugin, raw, beside), plugin.Close()); err != nil {
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
		plugin, agent := pair(t)
		agent.Close()
		if err := send(plugin, []byte("x\n"), beside); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s, to an agent that is gone: %v", name, err)
		}
		plugin.Close()
		if err := send(plugin, []byte("x\n"), beside); err == nil {
			t.Errorf("%s, on a closed connection: no error", name)
		}
	}
}
