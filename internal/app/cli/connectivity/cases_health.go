package connectivity

import (
	"context"
	"fmt"
	"strings"
)

// healthCases check the state of Trunkline's own components.
func healthCases() []Case {
	return []Case{{
		Name:    "health",
		Asserts: "every agent and the controller is ready, and every node can serve an ADD",
		Needs:   []Need{Trunkline},
		Run: func(ctx context.Context, e *Env) error {
			wrong, err := e.Cluster.Health(ctx)
			if err != nil {
				return fmt.Errorf("read Trunkline's status: %w", err)
			}
			if len(wrong) > 0 {
				return &Failure{Sent: "a query of Trunkline's status", Got: strings.Join(wrong, "; "), Want: "all ready", Hints: []string{"trunkline status"}}
			}
			return nil
		},
	}}
}
