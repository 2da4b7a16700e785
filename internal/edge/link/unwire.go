package link

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Unwire disconnects a pod at once and discards its link: it deletes the rules, sets the
// link down, which deletes its routes and neighbours, and puts it into the trash group.
// It takes about 0.1 ms; deleting the link would take 25.
//
// The link is only changed if it belongs to the endpoint (by its key): a late DEL of an
// old sandbox does not change the newer one's link. The addresses must still be the
// endpoint's: their rules are deleted in any case. Missing objects are success; queued is
// set if DeleteDiscarded will report the link.
func (h *Host) Unwire(ctx context.Context, e endpoint.Endpoint) (queued bool, err error) {
	state := hostnet.ForEndpoint(e)
	want := state.Links[0]
	found, err := h.sockets.find(want.Name)
	if err != nil {
		return false, fmt.Errorf("unwire %s: %w", e.Name(), err)
	}
	var batch []message
	if found != nil && belongsTo(linkOf(found), e) {
		queued = true
		if !dying(found) {
			batch = append(batch, discardLink(found))
		}
	}
	for _, r := range state.Rules {
		if r.Priority == hostnet.RuleFromPod {
			r.Table = 0 // any
		}
		batch = append(batch, ruleMessage(unix.RTM_DELRULE, 0, r))
	}
	each, err := h.sockets.request(ctx, batch...)
	if err == nil {
		err = firstError(each, unix.ENOENT, unix.ENODEV, unix.ESRCH)
	}
	if err != nil {
		return false, fmt.Errorf("unwire %s: %w", e.Name(), err)
	}
	if queued {
		h.trash.add(found)
	}
	return queued, nil
}

// belongsTo reports whether a link is the endpoint's: by its alias or, if a crash left it
// without one, by its MAC, which is derived from the endpoint's key.
func belongsTo(have hostnet.Link, e endpoint.Endpoint) bool {
	if a, ok := hostnet.ParseAlias(have.Alias); ok {
		return a.Key == e.Key
	}
	return have.Ours() && have.MAC == e.HostMAC
}
