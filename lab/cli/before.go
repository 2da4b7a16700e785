package cli

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/trunkline/trunkline/lab/awsnode"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/sim/iam"
)

// startsWithAWS reports whether the nodes start with AWS's daemon.
func startsWithAWS(want daemon.Lab) bool {
	return slices.ContainsFunc(want.Nodes, func(n daemon.Node) bool { return n.Before != "" })
}

// allowAWS attaches AWS's managed policy to the nodes' role, as on EKS. The policy of
// Trunkline is there too: attaching it is the first step of a migration.
func allowAWS(roles []iam.Role) {
	for _, r := range roles {
		if r.Name == spec.DefaultRole {
			r.Policies["AmazonEKS_CNI_Policy"] = []byte(awsnode.ManagedPolicy)
		}
	}
}

// productDir is the directory of Trunkline's manifests in a lab that starts without it.
func productDir(stateDir string) string { return filepath.Join(deployDir(stateDir), "trunkline") }

// migrationHint says how Trunkline takes over the nodes of such a lab; empty for others.
func migrationHint(r record, stateDir, command string) string {
	if !startsWithAWS(r.Lab) {
		return ""
	}
	return fmt.Sprintf("\nAWS's daemon serves the nodes. Trunkline takes them over by docs/migrate.md, with this lab's manifests in step 3:\n  %s kubectl apply -k %s\n",
		command, productDir(stateDir))
}

// hasOtherNetwork reports whether a node has another network than Trunkline.
func hasOtherNetwork(want daemon.Lab) bool {
	return slices.ContainsFunc(want.Nodes, func(n daemon.Node) bool { return n.OtherNetwork })
}
