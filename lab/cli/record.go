package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
	"github.com/trunkline/trunkline/lab/daemon"
)

// record is lab.json in a lab's state directory: the result of `up`, for later commands.
type record struct {
	Lab     daemon.Lab `json:"lab"`
	Source  string     `json:"source"`
	Version string     `json:"version"`
	Product string     `json:"product"` // path of the trunkline program
	// Workload is the reference of the workload image, WorkloadPath the path of its
	// program.
	Workload     string `json:"workload"`
	WorkloadPath string `json:"workloadPath"`
	// Earlier are the programs of earlier ups. Nodes and the control plane that these
	// ups started run them again after a crash or a reboot.
	Earlier []daemon.Parts `json:"earlier,omitempty"`
}

func recordPath(stateDir string) string { return filepath.Join(stateDir, "lab.json") }

func (r record) save(stateDir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(recordPath(stateDir), text, 0o600)
}

// accept refuses a change that the running lab of this record cannot make. command selects
// the lab.
func (r record) accept(want daemon.Lab, command string) error {
	fixed, err := r.Lab.FixedIn(want)
	if err != nil || len(fixed) == 0 {
		return err
	}
	return refused(fmt.Errorf("lab %s is running and differs in %s: only nodes can change while it runs; "+
		"take it down first (%s down), change it through the EC2 API, or start another lab (--name)",
		want.Name, strings.Join(fixed, ", "), command))
}

// partsBefore returns the programs that this up and earlier ones gave to the running lab,
// without those of want.
func (r record) partsBefore(want daemon.Lab) []daemon.Parts {
	var out []daemon.Parts
	for _, p := range append(r.Earlier, r.Lab.Parts) {
		if p != want.Parts && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}
