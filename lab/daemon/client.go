package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/trunkline/trunkline/lab/apiproxy"
)

// ErrNotRunning is returned when no daemon answers on the lab's socket.
var ErrNotRunning = errors.New("lab is not running")

// Client calls a lab's daemon. It is safe for concurrent use.
type Client struct {
	http          *http.Client
	statusTimeout time.Duration
}

// statusTimeout is long because a starting daemon first removes what an earlier one left
// behind.
const statusTimeout = 30 * time.Second

// NewClient returns a client of the daemon of a state directory. It does not connect: if
// no daemon listens, the first call returns ErrNotRunning.
func NewClient(stateDir string) *Client {
	socket := SocketPath(stateDir)
	var d net.Dialer
	return &Client{statusTimeout: statusTimeout, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		},
		MaxIdleConns: 2,
	}}}
}

// Status returns the lab's status. A daemon that does not answer within half a minute is
// an error.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var st Status
	hangs := fmt.Errorf("the lab's daemon does not answer within %s: take the lab down, which also ends the daemon", c.statusTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, c.statusTimeout, hangs)
	defer cancel()
	body, err := c.do(ctx, http.MethodGet, "/v1/status", nil)
	if errors.Is(err, context.DeadlineExceeded) {
		return st, context.Cause(ctx)
	}
	if err != nil {
		return st, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&st); err != nil {
		return st, fmt.Errorf("read status: %w", err)
	}
	return st, nil
}

// NotRunning reports whether the lab has no running daemon.
func (c *Client) NotRunning(ctx context.Context) (bool, error) {
	_, err := c.Status(ctx)
	if errors.Is(err, ErrNotRunning) {
		return true, nil
	}
	return false, err
}

// Apply converges the lab to want and calls progress, if not nil, for every event. It
// returns nil when the lab is ready. When ctx ends the convergence is cancelled, without
// undoing what is done; the next Apply continues from there.
func (c *Client) Apply(ctx context.Context, want Lab, progress func(Event)) error {
	body, err := c.do(ctx, http.MethodPost, "/v1/apply", want)
	if err != nil {
		return err
	}
	defer body.Close()
	var last Event
	err = readEvents(body, func(e Event) {
		last = e
		if progress != nil && e.Phase != "" {
			progress(e)
		}
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return err
	case last.Phase == "" && last.State == StateDone:
		return nil
	case last.Error != "":
		return errors.New(last.Error)
	}
	return errors.New("the daemon exited before the lab was ready; see its log")
}

// Power performs a power action on a node. It returns when the action has taken effect; a
// started or rebooted node need not be Ready yet.
func (c *Client) Power(ctx context.Context, node string, action Power) error {
	body, err := c.do(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(node)+"/"+string(action), nil)
	if err != nil {
		return err
	}
	return body.Close()
}

// APIFaults returns the faults that the proxy before the API server injects.
func (c *Client) APIFaults(ctx context.Context) (f apiproxy.Faults, err error) {
	body, err := c.do(ctx, http.MethodGet, "/v1/apifaults", nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&f); err != nil {
		return nil, fmt.Errorf("read faults: %w", err)
	}
	return f, nil
}

// SetAPIFaults replaces them; none is no fault.
func (c *Client) SetAPIFaults(ctx context.Context, f apiproxy.Faults) error {
	body, err := c.do(ctx, http.MethodPut, "/v1/apifaults", append(apiproxy.Faults{}, f...))
	if err != nil {
		return err
	}
	return body.Close()
}

// RestartResourceController restarts the model of AWS's VPC resource controller, which then has no state.
func (c *Client) RestartResourceController(ctx context.Context) error {
	body, err := c.do(ctx, http.MethodPost, "/v1/resourcecontroller/restart", nil)
	if err != nil {
		return err
	}
	return body.Close()
}

// Stop shuts the lab down in order: nodes, control plane, world, daemon. It returns when
// all but the daemon has ended. lab/sweep removes the state on disk.
func (c *Client) Stop(ctx context.Context) error {
	body, err := c.do(ctx, http.MethodPost, "/v1/stop", nil)
	if err != nil {
		return err
	}
	return body.Close()
}

func (c *Client) do(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	var payload io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, payload)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	var opErr *net.OpError
	if errors.As(err, &opErr) && opErr.Op == "dial" {
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, opErr.Err)
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var refusal struct {
		Error string `json:"error"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&refusal); err != nil || refusal.Error == "" {
		return nil, fmt.Errorf("%s %s: the daemon answered %s", method, path, resp.Status)
	}
	return nil, errors.New(refusal.Error)
}

func readEvents(r io.Reader, fn func(Event)) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("read event: %w", err)
		}
		fn(e)
	}
	return lines.Err()
}
