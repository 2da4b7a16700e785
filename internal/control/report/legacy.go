package report

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// legacy are the chains that AWS's daemon left in iptables-legacy.
type legacy struct {
	chains   string    // empty without any
	why      string    // they are left
	reported time.Time // the last event
}

// whyLength is how many characters of an error a warning has: the API server refuses events of more
// than 1,024.
const whyLength = 300

// warning names the check and the command of docs/migrate.md.
func (l legacy) warning() string {
	return fmt.Sprintf("AWS's daemon left chains in iptables-legacy (%s): they translate packets of pods as that daemon was set up to, whatever Trunkline's settings are. Trunkline could not remove them, and tries again: %.*s. `iptables-legacy-save | grep AWS-` on the node prints them. Remove them by `iptables-legacy-save | grep -v -e AWS-SNAT-CHAIN -e AWS-CONNMARK-CHAIN -e 'comment \"AWS, ' | iptables-legacy-restore`, or replace the node", l.chains, whyLength, l.why)
}

// findLeft looks for what other agents have left on the node and only an operator can end.
func (r *Reporter) findLeft(ctx context.Context, _ bool) (time.Time, error) {
	return time.Time{}, errors.Join(r.findFilters(ctx), r.findLegacy())
}

// findLegacy looks for chains of AWS's daemon in iptables-legacy that no pod needs and that stay.
func (r *Reporter) findLegacy() error {
	found, why, err := r.Legacy()
	if err != nil {
		return fmt.Errorf("find chains that AWS's daemon left in iptables-legacy: %w", err)
	}
	now := legacy{chains: strings.Join(found, ", ")}
	if why != nil {
		now.why = strings.ReplaceAll(why.Error(), "\n", "; ") // of errors.Join
	}
	r.mu.Lock()
	was := r.legacy
	report := now.chains != "" && (now.chains != was.chains || time.Since(was.reported) >= policiesEvery)
	if now.reported = was.reported; report {
		now.reported = time.Now()
	}
	r.legacy = now
	r.mu.Unlock()
	if report {
		r.Log.Warn("AWS's daemon left chains in iptables-legacy", "chains", now.chains, "error", why)
		r.Events.NodeWarning("LegacyRulesLeft", now.warning()+".")
	}
	if now.chains != was.chains {
		r.Loop.Mark()
	}
	return nil
}
