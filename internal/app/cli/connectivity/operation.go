package connectivity

import (
	"context"
	"fmt"
	"time"
)

// operationGroup is the prefix of the names of the operation checks.
const operationGroup = "operation/"

// operations returns the checks at the end of every run, which no filter excludes. The run
// started at since.
func operations(since time.Time, drops dropWatch) []Case {
	return []Case{
		{
			Name:    operationGroup + "unexpected-drops",
			Asserts: "no link and no connection tracking of the test's nodes dropped a packet during the run",
			Run:     func(ctx context.Context, _ *Env) error { return drops.none(ctx) },
		},
		{
			Name:    operationGroup + "error-logs",
			Asserts: "no component of Trunkline logged an error during the run",
			Needs:   []Need{Trunkline},
			Run: func(ctx context.Context, e *Env) error {
				lines, err := e.Cluster.ErrorLines(ctx, since)
				if err != nil {
					return err
				}
				if len(lines) > 0 {
					return &Failure{
						Sent: "nothing", Got: fmt.Sprintf("%d error lines, first: %s", len(lines), lines[0]), Want: "no error in the logs of this run",
						Hints: []string{"kubectl logs -n kube-system --tail=-1 -l 'app.kubernetes.io/name in (trunkline-agent,trunkline-controller,trunkline-admission)'"},
					}
				}
				return nil
			},
		},
		{
			Name:    operationGroup + "interrupted-connections",
			Asserts: "streams held open during the run lost no message and were not interrupted",
			Run:     func(ctx context.Context, e *Env) error { return e.streams.kept(ctx) },
		},
	}
}
