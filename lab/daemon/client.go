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
)

// ErrNotRunning says that no daemon answers on the lab's socket.
var ErrNotRunning = errors.New("lab is not running")

// Client speaks to a lab's daemon. It is safe for concurrent use.
type Client struct {
	http   *http.Client
	answer time.Duration // what a daemon may take to say how its lab is
}

// answerTime is long: a daemon that starts first clears what an earlier one left.
const answerTime = 30 * time.Second

// NewClient returns a client of the lab whose state directory is given. It does
// not connect: the first call returns ErrNotRunning when nobody listens.
func NewClient(stateDir string) *Client {
	socket := SocketPath(stateDir)
	var d net.Dialer
	return &Client{answer: answerTime, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		},
		MaxIdleConns: 2,
	}}}
}

// Status asks how the lab is. A daemon that hangs is an error within half a minute.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var st Status
	hangs := fmt.Errorf("the lab's daemon does not answer within %s: take the lab down, it ends the daemon too", c.answer)
	ctx, cancel := context.WithTimeoutCause(ctx, c.answer, hangs)
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

// Silent reports whether no daemon answers.
func (c *Client) Silent(ctx context.Context) (bool, error) {
	_, err := c.Status(ctx)
	if errors.Is(err, ErrNotRunning) {
		return true, nil
	}
	return false, err
}

// Apply converges the lab to want and calls progress for every event on the way;
// progress may be nil. It returns when the lab is ready or why it is not. When
// ctx ends the convergence is cancelled: what stands stays, and the next Apply
// goes on from there.
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
	return errors.New("daemon ended before the lab was ready; its log says why")
}

// Power switches a node. It returns when the action has taken effect; a started
// or rebooted node need not be Ready yet.
func (c *Client) Power(ctx context.Context, node string, action Power) error {
	body, err := c.do(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(node)+"/"+string(action), nil)
	if err != nil {
		return err
	}
	return body.Close()
}

// Stop ends the lab in order: nodes, control plane, world, daemon. It returns
// when everything but the daemon is down; lab/sweep removes what is on disk.
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
		return nil, fmt.Errorf("%s %s: daemon answered %s", method, path, resp.Status)
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
