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
	"time"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// plugin is one run of the program.
type plugin struct {
	env    func(string) string
	stdin  io.Reader
	stdout io.Writer
	now    func() time.Time
}

// run does one invocation and returns the exit code. What goes wrong is printed
// on stdout as the specification wants it.
func (p plugin) run() int {
	if p.env("CNI_COMMAND") == "VERSION" {
		return p.print(map[string]any{"cniVersion": newest(), "supportedVersions": supported()})
	}
	c, err := parse(p.env, p.stdin)
	if err == nil {
		var result json.RawMessage
		if result, err = p.do(c); err == nil {
			if len(result) == 0 {
				return 0
			}
			return p.print(result)
		}
	}
	p.print(struct {
		CNIVersion string `json:"cniVersion"`
		*cnirpc.Error
	}{answerVersion(c.conf.CNIVersion), err})
	return 1
}

func (p plugin) print(v any) int {
	if err := json.NewEncoder(p.stdout).Encode(v); err != nil {
		return 1 // nobody reads what we say
	}
	return 0
}

func newest() string { return supported()[len(supported())-1] }

// answerVersion is the version an error is printed in: the configuration's where
// there is a good one.
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
			wait = statusAtBoot // no agent has run since the machine started
		}
		return p.ask(c, wait, cnirpc.CodeUnavailable)
	default: // CHECK, GC: neither is true of the past, so there is no spooling them
		return p.ask(c, c.conf.delWait, cnirpc.CodeTryAgain)
	}
}

// ask sends the request and waits up to wait for the answer. noAgent is the code
// when nobody answers.
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

// errNetns marks a namespace that cannot be opened.
var errNetns = errors.New("no such network namespace")

func (p plugin) send(c call, wait time.Duration) (*cnirpc.Response, error) {
	var netns *os.File
	if c.request.Netns != "" {
		f, err := os.Open(c.request.Netns)
		switch {
		case err == nil:
			defer f.Close()
			netns = f
		case c.request.Command == "DEL" && errors.Is(err, fs.ErrNotExist):
			// The runtime may have removed it already.
		default:
			return nil, fmt.Errorf("%w: %w", errNetns, err)
		}
	}
	return cnirpc.Call(time.Now().Add(wait), c.conf.Socket, c.request, netns)
}

// del succeeds once the agent or the disk has the request. Only a spool that
// cannot be written fails it.
func (p plugin) del(c call) *cnirpc.Error {
	_, err := p.ask(c, c.conf.delWait, cnirpc.CodeTryAgain)
	if err == nil {
		return nil
	}
	if spoolErr := cnirpc.Spool(c.conf.Spool, c.request, p.now()); spoolErr != nil {
		return refuse(cnirpc.CodeIO, "neither the agent nor the spool takes the DEL", fmt.Sprintf("%v; %v", err, spoolErr))
	}
	return nil
}
