package report

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/edge/kube"
)

// filtersEvery is how often the agent looks for programs that another agent left on pods'
// links, which end with the pods only, and for its chains in iptables-legacy.
const filtersEvery = 5 * time.Minute

// frozen are the pods with such programs.
type frozen struct {
	pods     string    // with their links and programs; empty without any
	reported time.Time // the last event
}

func (f frozen) warning() string {
	return fmt.Sprintf("on the links of %s another agent, such as AWS's network policy agent, left programs that nothing updates: they allow and deny the peers of that time. Restart these pods", f.pods)
}

// findFilters looks for pods that another CNI wired and that have filters at their links. While
// AWS's daemon runs, its policy agent may run too and update them.
// Source: aws/aws-network-policy-agent, issue 97.
func (r *Reporter) findFilters(ctx context.Context) error {
	if r.OtherAgent() {
		r.mu.Lock()
		r.frozen = frozen{}
		r.mu.Unlock()
		return nil
	}
	found, err := r.Filtered(ctx)
	if err != nil {
		return fmt.Errorf("find filters that another agent left: %w", err)
	}
	now := frozen{pods: named(filteredPods(r.Cluster.Pods(), found))}
	r.mu.Lock()
	was := r.frozen
	report := now.pods != "" && (now.pods != was.pods || time.Since(was.reported) >= policiesEvery)
	if now.reported = was.reported; report {
		now.reported = time.Now()
	}
	r.frozen = now
	r.mu.Unlock()
	if report {
		r.Log.Warn("programs of another agent are left on pods' links", "pods", now.pods)
		message := now.warning() + "."
		r.Events.NodeWarning("ProgramsNotUpdated", strings.ToUpper(message[:1])+message[1:])
	}
	if now.pods != was.pods {
		r.Loop.Mark()
	}
	return nil
}

// filteredPods are the pods with these addresses, by name, with links and filters.
func filteredPods(pods []kube.Pod, found map[netip.Addr]string) (out []string) {
	for _, p := range pods {
		if !p.WantsAddress() {
			continue
		}
		for _, addr := range p.Addresses {
			if filters, ok := found[addr]; ok {
				out = append(out, fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, filters))
			}
		}
	}
	slices.Sort(out)
	return out
}

// mostNamed is how many pods a warning names.
const mostNamed = 10

// named lists pods, of many only the first.
func named(pods []string) string {
	rest := ""
	if len(pods) > mostNamed {
		pods, rest = pods[:mostNamed], fmt.Sprintf(" and %d others", len(pods)-mostNamed)
	}
	return strings.Join(pods, ", ") + rest
}
