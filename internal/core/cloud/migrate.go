package cloud

import (
	"encoding/json"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Migrate completes an action in flight of version 1 of the journal. Version 1 had each
// action twice: the ledger's row and, before the first call, an intent, which alone had
// the instance, the description and the tags. intent is the JSON of that second record.
// Its parameters are kept exactly: EC2 refuses a client token with other ones.
//
// Where the outcome was known, it had replaced the intent. Then Migrate adds nothing,
// Node.Complete does, and Recover asks EC2 for the outcome again.
func Migrate(a Action, intent json.RawMessage) (Action, error) {
	if a.Instance != "" {
		return a, nil
	}
	var old struct {
		Intent struct {
			Instance    vpc.InstanceID    `json:"instance"`
			Description string            `json:"description"`
			Tags        map[string]string `json:"tags"`
		} `json:"intent"`
	}
	if err := json.Unmarshal(intent, &old); err != nil {
		return Action{}, fmt.Errorf("read the intent of action %s: %w", a.ID, err)
	}
	a.Instance, a.Description, a.Tags = old.Intent.Instance, old.Intent.Description, old.Intent.Tags
	return a, nil
}
