// Package defaults holds the defaults of settings that more than one program needs:
// the agent by its configuration, the plugin when its conflist does not say, the CLI
// when no flag does.
//
// It is a leaf without imports beyond time, so that the plugin, which starts for every
// pod, can take them without the configuration.
package defaults

import "time"

const (
	// Socket is where the agent listens and the plugin connects.
	Socket = "/run/trunkline/agent.sock"
	// StateDir has the agent's journal, the spool and the snapshot.
	StateDir = "/var/lib/trunkline"
	// SpoolDir is below StateDir: DELs that no agent answered.
	SpoolDir = StateDir + "/spool"
	// AddWait is how long an ADD waits for an agent and an address. It is longer than
	// an upgrade of the agent takes.
	AddWait = 90 * time.Second
	// DelWait is how long a DEL waits for an agent before it is spooled.
	DelWait = 2 * time.Second
	// IntrospectionAddress is where the agent serves /v1/*, /healthz and /readyz.
	IntrospectionAddress = "127.0.0.1:61679"
)
