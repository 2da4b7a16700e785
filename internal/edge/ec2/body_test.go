package ec2

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// sent is a client that keeps the request it sends.
type sent struct{ request *http.Request }

func (s *sent) Do(r *http.Request) (*http.Response, error) {
	s.request = r
	return nil, nil
}

// tracked is a body that notes its close, which may fail.
type tracked struct {
	io.Reader
	closed bool
	err    error // of the close
}

func (b *tracked) Close() error {
	b.closed = true
	return b.err
}

func request(t *testing.T, body io.ReadCloser) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://ec2.test", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Body = body
	return r
}

func TestABodyIsSentFromMemory(t *testing.T) {
	var s sent
	body := &tracked{Reader: strings.NewReader("Action=X")}
	r := request(t, body)
	if _, err := (bufferedBody{next: &s}).Do(r); err != nil || !body.closed {
		t.Errorf("%v, the SDK's body is closed: %v", err, body.closed)
	}
	if raw, err := io.ReadAll(s.request.Body); err != nil || string(raw) != "Action=X" || s.request.ContentLength != 8 {
		t.Errorf("sent %q of %d bytes, %v", raw, s.request.ContentLength, err)
	}
	if r.Body != io.ReadCloser(body) || s.request == r {
		t.Error("the SDK's request was changed")
	}
	r = request(t, nil)
	if _, err := (bufferedBody{next: &s}).Do(r); err != nil || s.request != r {
		t.Errorf("a request without a body: %v, sent unchanged: %v", err, s.request == r)
	}
}

func TestABodyThatCannotBeReadIsNotSent(t *testing.T) {
	broken := errors.New("broken")
	for name, body := range map[string]*tracked{
		"read": {Reader: io.MultiReader(strings.NewReader("Act"), iotest.ErrReader(broken))}, "close": {Reader: strings.NewReader("Action=X"), err: broken},
	} {
		var s sent
		if _, err := (bufferedBody{next: &s}).Do(request(t, body)); !errors.Is(err, broken) || s.request != nil || !body.closed {
			t.Errorf("%s: %v, sent %v, closed %v", name, err, s.request != nil, body.closed)
		}
	}
}

// A call over a broken path must not hang until the call's own time is over.
func TestEveryStageOfAConnectionHasATime(t *testing.T) {
	own := awshttp.NewBuildableClient().WithTimeout(time.Hour)
	for name, cfg := range map[string]aws.Config{"no client": {}, "a client of the SDK's configuration": {HTTPClient: own}} {
		for _, keep := range []bool{true, false} {
			wrapped, ok := httpClient(cfg, keep).(bufferedBody)
			if !ok {
				t.Fatalf("%s: the body is not buffered", name)
			}
			client, ok := wrapped.next.(*awshttp.BuildableClient)
			if !ok {
				t.Fatalf("%s: %T", name, wrapped.next)
			}
			d, tr := client.GetDialer(), client.GetTransport()
			if d.Timeout != 3*time.Second || d.KeepAlive != 15*time.Second || tr.TLSHandshakeTimeout != 5*time.Second ||
				tr.ResponseHeaderTimeout != 30*time.Second || tr.IdleConnTimeout != time.Minute || tr.MaxIdleConnsPerHost != 8 || tr.DisableKeepAlives == keep {
				t.Errorf("%s, connections kept %v: %+v, %+v", name, keep, d, tr)
			}
			if of := client.GetTimeout(); (of == time.Hour) != (cfg.HTTPClient != nil) {
				t.Errorf("%s: timeout %s", name, of)
			}
		}
	}
	if _, ok := NewReader(aws.Config{}).Options().HTTPClient.(bufferedBody); !ok {
		t.Error("the reader's body is not buffered")
	}
	for name, api := range map[string]API{"kept": NewClients(aws.Config{}).Kept, "fresh": NewClients(aws.Config{}).Fresh} {
		client, ok := api.(*ec2.Client)
		if !ok {
			t.Fatalf("%T", api)
		}
		wrapped, ok := client.Options().HTTPClient.(bufferedBody)
		if !ok {
			t.Fatalf("%s: the body is not buffered", name)
		}
		if fresh := wrapped.next.(*awshttp.BuildableClient).GetTransport().DisableKeepAlives; fresh != (name == "fresh") {
			t.Errorf("%s: a new connection for each call: %v", name, fresh)
		}
		if n := client.Options().Retryer.MaxAttempts(); n != 1 {
			t.Errorf("%s: the SDK makes a call %d times", name, n)
		}
	}
}

func TestClientsWithoutCredentialsSendUnsignedRequests(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		var s sent
		clients := NewClients(aws.Config{Region: "r", HTTPClient: &s})
		api := clients.Kept
		if fresh {
			api = clients.Fresh
		}
		if _, err := api.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{}); err == nil || s.request == nil || s.request.Header.Get("Authorization") != "" {
			t.Errorf("%v, sent %v", err, s.request)
		}
	}
}
