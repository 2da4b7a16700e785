package ec2

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

// sent is a client that keeps the request it sends.
type sent struct{ request *http.Request }

func (s *sent) Do(r *http.Request) (*http.Response, error) {
	s.request = r
	return nil, nil
}

// tracked is a body that tells whether it was closed, and may fail.
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
	if _, err := (bufferedBody{&s}).Do(r); err != nil || !body.closed {
		t.Errorf("%v, the SDK's body is closed: %v", err, body.closed)
	}
	if raw, err := io.ReadAll(s.request.Body); err != nil || string(raw) != "Action=X" || s.request.ContentLength != 8 {
		t.Errorf("sent %q of %d bytes, %v", raw, s.request.ContentLength, err)
	}
	if r.Body != io.ReadCloser(body) || s.request == r {
		t.Error("the SDK's request was changed")
	}
	r = request(t, nil)
	if _, err := (bufferedBody{&s}).Do(r); err != nil || s.request != r {
		t.Errorf("a request without a body: %v, sent unchanged: %v", err, s.request == r)
	}
}

func TestABodyThatCannotBeReadIsNotSent(t *testing.T) {
	broken := errors.New("broken")
	for name, body := range map[string]*tracked{
		"read": {Reader: io.MultiReader(strings.NewReader("Act"), iotest.ErrReader(broken))}, "close": {Reader: strings.NewReader("Action=X"), err: broken},
	} {
		var s sent
		if _, err := (bufferedBody{&s}).Do(request(t, body)); !errors.Is(err, broken) || s.request != nil || !body.closed {
			t.Errorf("%s: %v, sent %v, closed %v", name, err, s.request != nil, body.closed)
		}
	}
}
