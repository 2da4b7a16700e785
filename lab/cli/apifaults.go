package cli

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/trunkline/trunkline/lab/apiproxy"
	"github.com/trunkline/trunkline/lab/daemon"
)

type apiFaultsCmd struct {
	Faults string `arg:"" optional:"" help:"The faults to inject from now on, as JSON. Default: show those in force."`
}

func (c *apiFaultsCmd) Run(s *session) error {
	lab, err := s.lab()
	if err != nil {
		return err
	}
	client := daemon.NewClient(s.labs.stateDir(lab))
	if c.Faults != "" {
		var want apiproxy.Faults
		dec := json.NewDecoder(strings.NewReader(c.Faults))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&want); err != nil {
			return coded{fmt.Errorf("read faults: %w", err), ExitUsage}
		}
		if err := client.SetAPIFaults(s.ctx, want); err != nil {
			return err
		}
	}
	have, err := client.APIFaults(s.ctx)
	if err != nil {
		return err
	}
	return s.console.writeJSON(have)
}
