package cloud

import (
	"encoding/json"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Migrate completes an action in flight that an agent of the first journal layout
// left. That agent wrote each action twice: the ledger's row, and before the first
// call an intent, which alone had the instance, the description and the tags.
// intent is the JSON of that second record. Its parameters are kept exactly, for
// EC2 refuses a client token that comes with others.
//
// That agent replaced the intent by the outcome where it knew one; then nothing is
// added, Node.Complete does, and EC2 is asked for the outcome again.
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
