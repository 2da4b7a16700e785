package ec2_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// What happens in the time of these tests.
const (
	lateness = 3 * time.Millisecond // until the goroutine that has sent a request runs again
	perRead  = time.Millisecond     // until some more of a response has arrived
)

// A long response is lost by AWS's SDK if it begins before the goroutine that sent the
// request runs again, as between two processes of one machine. The SDK (smithy-go, package
// transport/http) closes a request's body when the response begins. net/http's goroutine,
// which still has to look for the end of the body, then gets io.EOF from the closed body's
// WriteTo, an error for a WriterTo, and closes the connection. Any other client reads the
// response: the server is not at fault. Real EC2 is milliseconds away.
//
// Source: github.com/aws/aws-sdk-go-v2/issues/2737.
func TestALongAnswerWithoutLatencyIsLostByTheSDKsClient(t *testing.T) {
	for name, test := range map[string]struct {
		latency time.Duration
		client  func(*http.Client) aws.HTTPClient
		lost    bool
	}{
		"the SDK's client without latency":       {0, func(c *http.Client) aws.HTTPClient { return c }, true},
		"another client without latency":         {0, func(c *http.Client) aws.HTTPClient { return inMemory{c} }, false},
		"the SDK's client with the lab's 5 ms":   {5 * time.Millisecond, func(c *http.Client) aws.HTTPClient { return c }, false},
		"the SDK's client with too little of it": {time.Millisecond, func(c *http.Client) aws.HTTPClient { return c }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNear(t, test.latency)
				err := n.describe(test.client(&http.Client{Transport: n.transport}))
				if lost := errors.Is(err, net.ErrClosed); lost != test.lost || err != nil && !lost {
					t.Errorf("got %v, want lost %v", err, test.lost)
				}
			})
		})
	}
}

// inMemory sends each request from memory, as most programs do: net/http then has nothing
// left to do for it once it is sent.
type inMemory struct{ client *http.Client }

func (c inMemory) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	sent := r.Clone(r.Context())
	sent.Body = io.NopCloser(bytes.NewReader(body))
	return c.client.Do(sent)
}

// near is an API on the same machine as its client, in the bubble of a test.
type near struct {
	transport *http.Transport
	key       iam.Credentials
	conns     chan net.Conn // accepted by the server
	closed    chan struct{}
	stop      sync.Once
}

func newNear(t *testing.T, latency time.Duration) *near {
	t.Helper()
	c, err := cloud.New(seeded(), cloud.Options{Instant: true})
	if err != nil {
		t.Fatal(err)
	}
	identities := iam.New(seeded().Account, 1, nil)
	n := &near{conns: make(chan net.Conn), closed: make(chan struct{})}
	if n.key, err = identities.AddUser("tester", []byte(allowAll)); err != nil {
		t.Fatal(err)
	}
	n.transport = &http.Transport{DialContext: n.dial}
	server := &http.Server{Handler: query.New(query.Options{
		Cloud: c, IAM: identities, Faults: faults.New(1, nil), Calls: &faults.Log{}, Region: seeded().Region, Latency: latency,
	}, ec2.Service(c))}
	served := make(chan error, 1)
	go func() { served <- server.Serve(n) }()
	t.Cleanup(func() {
		n.transport.CloseIdleConnections()
		if err := errors.Join(server.Close(), <-served); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return n
}

// describe reads a response of about 60 KB.
func (n *near) describe(client aws.HTTPClient) error {
	out, err := awsec2.New(awsec2.Options{
		Region: seeded().Region, BaseEndpoint: aws.String("http://near"), HTTPClient: client, Retryer: aws.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider(n.key.AccessKeyID, n.key.SecretAccessKey, ""),
	}).DescribeInstanceTypes(context.Background(), &awsec2.DescribeInstanceTypesInput{})
	if err == nil && len(out.InstanceTypes) < 50 {
		return errors.New("the response is not long")
	}
	return err
}

func (n *near) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	n.conns <- server
	return &nearConn{Conn: client, closed: make(chan struct{})}, nil
}

// Accept, Close and Addr implement net.Listener.
func (n *near) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *near) Close() error {
	n.stop.Do(func() { close(n.closed) })
	return nil
}

func (n *near) Addr() net.Addr { return &net.UnixAddr{Name: "near", Net: "unix"} }

// nearConn is the client's end of a connection. It schedules the goroutines that use it.
type nearConn struct {
	net.Conn
	closed chan struct{}
	close  sync.Once
}

func (c *nearConn) Write(p []byte) (int, error) {
	sent, err := c.Conn.Write(p)
	<-time.After(lateness)
	return sent, err
}

func (c *nearConn) Read(p []byte) (int, error) {
	select {
	case <-time.After(perRead):
	case <-c.closed:
		return 0, net.ErrClosed // as a TCP connection
	}
	got, err := c.Conn.Read(p)
	if errors.Is(err, io.ErrClosedPipe) {
		err = net.ErrClosed
	}
	return got, err
}

func (c *nearConn) Close() error {
	c.close.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
