package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"

	"github.com/trunkline/trunkline/api/introspection"
)

// askAgent sends a request to the agent on this node, at its debug socket, which is beside
// the socket that the plugin calls and open to root only. absent is what to look for when the
// agent does not answer.
func askAgent(ctx context.Context, socket, method, path, absent string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, ledgerTimeout)
	defer cancel()
	body, err := openAgent(ctx, socket, method, path, absent)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	answer, err := io.ReadAll(io.LimitReader(body, maxLedger))
	if err != nil {
		return nil, fmt.Errorf("read the agent's answer: %w", err)
	}
	return answer, nil
}

// openAgent is askAgent with an answer that is read as it comes.
func openAgent(ctx context.Context, socket, method, path, absent string) (io.ReadCloser, error) {
	debug := introspection.DebugSocket(socket)
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("query the agent: %w", err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", debug)
	}}}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("query the agent of this node at %s: the socket is open to root only, run as root: %w", debug, err)
	case err != nil:
		return nil, fmt.Errorf("query the agent of this node at %s: %s: %w", debug, absent, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		why, err := io.ReadAll(io.LimitReader(resp.Body, maxLedger))
		return nil, errors.Join(fmt.Errorf("query the agent at %s: %s", debug, strings.TrimSpace(string(why))), err)
	}
	return resp.Body, nil
}

// Handover has the agent on this node write the checkpoint of AWS's daemon, and returns what
// is in it.
func Handover(ctx context.Context, socket string) (string, error) {
	answer, err := askAgent(ctx, socket, http.MethodPost, introspection.HandoverPath, "does it run here? Where it does not, run trunkline uninstall")
	return string(answer), err
}
