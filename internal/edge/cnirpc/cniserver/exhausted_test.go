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

func TestAcceptIsRetriedWhileThereIsNoDescriptor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	reports := make(chan error, 100)
	serveAt(t, socket, Server{Handle: echo, UID: uint32(os.Getuid()), Report: func(err error) { reports <- err }})
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
	case report := <-reports:
		err = errors.Join(err, report)
	case <-time.After(10 * time.Second):
		t.Error("no report of the failed accept")
	}
	restore()
	if !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("reported %v, want EMFILE", err)
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
		t.Errorf("no answer after descriptors became available: %v", err)
	}
}
