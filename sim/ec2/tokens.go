package ec2

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/trunkline/trunkline/sim/cloud"
)

// tokens stores the result for each client token, so that a call repeated with the
// same token and parameters takes effect once. Source: EC2 API reference, "Ensuring
// idempotency".
type tokens struct {
	mu   sync.Mutex // guards done
	done map[string]*outcome
}

type outcome struct {
	finished chan struct{}
	request  any
	// response and err are written before finished is closed.
	response any
	err      error
}

func newTokens() *tokens { return &tokens{done: map[string]*outcome{}} }

// once runs do, or returns the stored result of the same token. The same token with
// another request is refused. Failures are not stored.
func once[Req, Resp any](t *tokens, action, token string, req *Req, do func() (*Resp, error)) (*Resp, error) {
	if token == "" {
		return do()
	}
	if len(token) > 64 {
		return nil, cloud.InvalidParameter("The client token '%s' is longer than 64 characters.", token)
	}
	key := action + " " + token
	mine := &outcome{finished: make(chan struct{}), request: req}
	t.mu.Lock()
	earlier := t.done[key]
	if earlier == nil {
		t.done[key] = mine
	}
	t.mu.Unlock()
	if earlier == nil {
		defer close(mine.finished)
		response, err := do()
		mine.response, mine.err = response, err
		if err != nil {
			t.forget(key)
		}
		return response, err
	}
	<-earlier.finished
	if !reflect.DeepEqual(earlier.request, any(req)) {
		return nil, cloud.Errorf("IdempotentParameterMismatch",
			"The request uses the same client token as a previous, but non-identical request.")
	}
	if earlier.err != nil {
		return nil, earlier.err
	}
	response, ok := earlier.response.(*Resp)
	if !ok {
		return nil, fmt.Errorf("client token %s: stored a %T", token, earlier.response)
	}
	return response, nil
}

func (t *tokens) forget(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.done, key)
}
