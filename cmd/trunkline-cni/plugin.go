package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// plugin is one run of the program, with its environment.
type plugin struct {
	env    func(string) string
	stdin  io.Reader
	stdout io.Writer
	now    func() time.Time
}

// run carries out one call and returns the exit code. An error is printed on stdout in
// the form of the CNI specification.
func (p plugin) run() int {
	if p.env("CNI_COMMAND") == "VERSION" {
		return p.print(map[string]any{"cniVersion": newest(), "supportedVersions": supported()})
	}
	c, err := parse(p.env, p.stdin)
	var result json.RawMessage
	if err == nil {
		result, err = p.do(c)
	}
	switch {
	case err != nil:
		p.print(struct {
			CNIVersion string `json:"cniVersion"`
			*cnirpc.Error
		}{answerVersion(c.conf.CNIVersion), err})
		return 1
	case len(result) == 0:
		return 0
	default: // valid JSON as it is
		if _, err := p.stdout.Write(append(result, '\n')); err != nil {
			return 1
		}
		return 0
	}
}

// print writes v as JSON and returns the exit code.
func (p plugin) print(v any) int {
	if err := json.NewEncoder(p.stdout).Encode(v); err != nil {
		return 1
	}
	return 0
}

func newest() string { return supported()[len(supported())-1] }

// answerVersion is the CNI version an error is printed in: the configuration's if it is
// supported.
func answerVersion(configured string) string {
	if slices.Contains(supported(), configured) {
		return configured
	}
	return newest()
}

func (p plugin) do(c call) (json.RawMessage, *cnirpc.Error) {
	switch c.request.Command {
	case "ADD":
		return p.ask(c, c.conf.addWait, cnirpc.CodeTryAgain)
	case "DEL":
		return nil, p.del(c)
	case "STATUS":
		wait := statusWait
		if _, err := os.Stat(filepath.Dir(c.conf.Socket)); err != nil {
			wait = statusAtBoot // /run is empty: no agent has run since the node booted
		}
		return p.ask(c, wait, cnirpc.CodeUnavailable)
	default: // CHECK and GC describe the present and cannot be spooled
		return p.ask(c, c.conf.delWait, cnirpc.CodeTryAgain)
	}
}

// ask sends the request and waits up to wait for the answer. noAgent is the error code
// when there is none.
func (p plugin) ask(c call, wait time.Duration, noAgent uint) (json.RawMessage, *cnirpc.Error) {
	resp, err := p.send(c, wait)
	switch {
	case errors.Is(err, errNetns):
		return nil, refuse(cnirpc.CodeInvalidNetns, "open the pod's network namespace", err.Error())
	case errors.Is(err, cnirpc.ErrNoAgent):
		return nil, refuse(noAgent, "the Trunkline agent of this node does not answer",
			fmt.Sprintf("waited %s at %s; see `kubectl -n kube-system get pods -l app.kubernetes.io/name=trunkline-agent -o wide`: %v", wait, c.conf.Socket, err))
	case err != nil:
		return nil, refuse(cnirpc.CodeIO, "ask the Trunkline agent", err.Error())
	case resp.Error != nil:
		return nil, resp.Error
	}
	return resp.Result, nil
}

// errNetns: the pod's network namespace cannot be opened.
var errNetns = errors.New("no such network namespace")

func (p plugin) send(c call, wait time.Duration) (*cnirpc.Response, error) {
	var netns *os.File
	if c.request.Netns != "" {
		f, err := openNetns(c.request.Netns)
		switch {
		case err == nil:
			defer f.Close()
			netns = f
		case c.request.Command == "DEL" && errors.Is(err, fs.ErrNotExist):
			// The runtime may delete the namespace before it calls DEL.
		default:
			return nil, fmt.Errorf("%w: %w", errNetns, err)
		}
	}
	return cnirpc.Call(time.Now().Add(wait), c.conf.Socket, c.request, netns)
}

// openNetns is os.Open without the runtime's poller, which the rest of the process does not use:
// starting it took 0.04 ms of each call.
func openNetns(path string) (*os.File, error) {
	for {
		fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// del succeeds when the agent carried out the DEL or a spool holds it: that on the disk, or
// the volatile one if the disk is full or read-only. It fails only when none is possible.
func (p plugin) del(c call) *cnirpc.Error {
	_, err := p.ask(c, c.conf.delWait, cnirpc.CodeTryAgain)
	if err == nil {
		return nil
	}
	spoolErr := cnirpc.Spool(c.conf.Spool, c.request, p.now())
	if spoolErr == nil {
		return nil
	}
	volatileErr := cnirpc.SpoolVolatile(c.conf.Socket, c.request, p.now())
	if volatileErr == nil {
		return nil
	}
	return refuse(cnirpc.CodeIO, "neither the agent nor the spool accepts the DEL", fmt.Sprintf("%v; %v; %v", err, spoolErr, volatileErr))
}
