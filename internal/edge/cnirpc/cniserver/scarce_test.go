package cniserver

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

func TestAnAgentOutOfDescriptorsAnswersOnceItHasSome(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	told := make(chan error, 100)
	serveAt(t, socket, Server{Handle: echo, UID: uint32(os.Getuid()), Report: func(err error) { told <- err }})
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	plugin := os.NewFile(uintptr(fd), "plugin")
	defer plugin.Close()

	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket})
	select {
	case refused := <-told:
		err = errors.Join(err, refused)
	case <-time.After(10 * time.Second):
		t.Error("nothing is said about a call that cannot be taken")
	}
	restore()
	if !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("told of %v, want that there is no descriptor", err)
	}
	conn, err := net.FileConn(plugin)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request, err := cnirpc.EncodeLine(cnirpc.Request{Version: cnirpc.Version, Command: "STATUS", Config: []byte("{}")})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 4096)); err != nil || n == 0 {
		t.Errorf("no answer once there are descriptors: %v", err)
	}
}
