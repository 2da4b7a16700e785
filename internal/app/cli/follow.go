package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/trunkline/trunkline/api/introspection"
)

// Pauses before an agent is connected again: doubled from the first to the last.
const (
	firstReconnect = 200 * time.Millisecond
	lastReconnect  = 15 * time.Second
)

// follower reads the flow log of one agent until its context ends, and connects again when the
// agent ends, because it restarts or its node does.
type follower struct {
	agent  Agent
	query  FlowQuery
	each   func(introspection.Flow) error
	notice func(text string)

	stopped error     // what each has returned
	last    time.Time // of the records that were read
	alive   bool      // the agent has answered since the last connection
	ever    bool      // it has answered at all
	noticed string    // the last notice, since it answered
}

// run returns nil once ctx has ended. One that must answer is an error if the agent never has.
func (f *follower) run(ctx context.Context, must bool) error {
	pause := firstReconnect
	for {
		f.alive = false
		err := f.read(ctx)
		if ctx.Err() != nil {
			return f.stopped
		}
		switch {
		case f.stopped != nil:
			return f.stopped
		case !f.ever && must:
			return err
		case err == nil:
			err = errors.New("the agent has ended or restarts")
		}
		if text := fmt.Sprintf("%s: the flow log is interrupted: %v; connecting again", f.agent.name(), err); text != f.noticed {
			f.noticed = text
			f.notice(text)
		}
		if f.alive {
			pause = firstReconnect
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		pause = min(2*pause, lastReconnect)
	}
}

// read reads one answer. An agent that is connected again sends what it has kept: records that were
// read already are left out.
func (f *follower) read(ctx context.Context) error {
	in, out := io.Pipe()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end() // before Wait: an answer that is followed does not end by itself
	wg.Go(func() { out.CloseWithError(f.agent.Query(ctx, f.query.path(), out)) })
	before := f.last
	err := decodeFlows(in, f.answered, func(flow introspection.Flow) error {
		if !flow.Time.After(before) {
			return nil
		}
		f.last = flow.Time
		flow.Node = f.agent.Node
		if f.query.wants(flow) {
			f.stopped = f.each(flow)
		}
		return f.stopped
	})
	_ = in.CloseWithError(err) // never fails
	return err
}

// answered notes that the agent answers.
func (f *follower) answered() {
	if f.noticed != "" {
		f.notice(f.agent.name() + ": connected again")
	}
	f.alive, f.ever, f.noticed = true, true, ""
}
