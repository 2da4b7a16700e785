package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// podCommand is a command to run in a container.
type podCommand struct {
	namespace, pod, container string // an empty container is the first one
	argv                      []string
}

// lockedBuffer is a buffer that may be read while it is written: an interrupted command
// may still write its output.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// execute runs a command in a container through the API server, over WebSocket or, if
// the server does not support it, over SPDY. An exit status other than 0 is an error
// that wraps connectivity.ErrExit; the output is returned as well.
func execute(ctx context.Context, c *kube.Client, cmd podCommand) (connectivity.Output, error) {
	var stdout, stderr lockedBuffer
	err := stream(ctx, c, cmd, &stdout, &stderr)
	return connectivity.Output{Stdout: stdout.String(), Stderr: stderr.String()}, err
}

// stream is execute with the output as it comes. After ctx has ended, the output may still be
// written to.
func stream(ctx context.Context, c *kube.Client, cmd podCommand, stdout, stderr io.Writer) error {
	req := c.Core.CoreV1().RESTClient().Post().Resource("pods").Namespace(cmd.namespace).Name(cmd.pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: cmd.container, Command: cmd.argv, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	spdy, err := remotecommand.NewSPDYExecutor(c.Config, "POST", req.URL())
	if err != nil {
		return fmt.Errorf("prepare exec: %w", err)
	}
	cfg := rest.CopyConfig(c.Config)
	ws, err := remotecommand.NewWebSocketExecutor(cfg, "GET", req.URL().String())
	if err != nil {
		return fmt.Errorf("prepare exec: %w", err)
	}
	run, err := remotecommand.NewFallbackExecutor(ws, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return fmt.Errorf("prepare exec: %w", err)
	}
	log := &execLog{}
	err = run.StreamWithContext(klog.NewContext(ctx, klog.New(log)), remotecommand.StreamOptions{Stdout: stdout, Stderr: stderr})
	var exit utilexec.CodeExitError
	exited := errors.As(err, &exit)
	log.end(err == nil || exited, klog.FromContext(ctx))
	switch {
	case exited:
		return fmt.Errorf("%s in pod %s: status %d: %w", strings.Join(cmd.argv, " "), cmd.pod, exit.Code, connectivity.ErrExit)
	case err != nil:
		return fmt.Errorf("run %s in pod %s: %w", strings.Join(cmd.argv, " "), cmd.pod, err)
	}
	return nil
}
