package connectivity

import (
	"context"
	"fmt"
	"strings"
)

// healthCases ask Trunkline itself.
func healthCases() []Case {
	return []Case{{
		Name:    "health",
		Asserts: "every agent and the controller is ready, and every node can serve an ADD",
		Needs:   []Need{Trunkline},
		Run: func(ctx context.Context, e *Env) error {
			wrong, err := e.Cluster.Health(ctx)
			if err != nil {
				return fmt.Errorf("ask for Trunkline's health: %w", err)
			}
			if len(wrong) > 0 {
				return &Failure{Sent: "a look at Trunkline's parts", Got: strings.Join(wrong, "; "), Want: "all ready", Look: []string{"trunkline status"}}
			}
			return nil
		},
	}}
}
