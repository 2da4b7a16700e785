package spec

import (
	"fmt"
	"slices"

	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/query"
	"github.com/trunkline/trunkline/sim/sts"
)

// checkFaults reports an invalid plan and unknown actions in it.
func checkFaults(p *problems, plan faults.Plan) {
	if err := plan.Check(); err != nil {
		p.add("faults", "", "%v", err)
	}
	for name := range plan.Latency {
		action(p, "faults.latency", name)
	}
	for name := range plan.Throttle {
		action(p, "faults.throttle", name)
	}
	for i, call := range plan.Calls {
		action(p, fmt.Sprintf("faults.calls[%d].action", i), call.Action)
	}
}

// action reports the name of an action that the embedded APIs do not have: a fault for it
// would never take effect.
func action(p *problems, field, name string) {
	if name == "*" || name == "" { // Check reports an empty name
		return
	}
	services := slices.Concat(ec2.Service(nil).Actions, sts.New(nil, nil).Service().Actions)
	if !slices.ContainsFunc(services, func(a query.Action) bool { return a.Name == name }) {
		p.add(field, name, "unknown action of the embedded EC2 and STS; \"*\" is all actions")
	}
}
