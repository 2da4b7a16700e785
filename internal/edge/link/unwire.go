package link

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Unwire cuts a pod off at once and leaves its link to the reaper: rules go, the
// link goes down, which takes routes and neighbours with it, and into the trash
// group. It takes some 0.1 ms; deleting the link on the spot would take 25.
//
// The link is only touched if it belongs to the endpoint (by its key): a late DEL of
// an old sandbox leaves the newer one's alone. The addresses must still be the
// endpoint's: their rules are deleted in any case.
// What is gone already is gone; queued tells whether the reaper will report the
// link as gone.
func (h *Host) Unwire(ctx context.Context, e endpoint.Endpoint) (queued bool, err error) {
	state := hostnet.ForEndpoint(e)
	end := h.account.taking(state)
	defer func() { end(err) }()
	want := state.Links[0]
	found, err := h.find(want.Name)
	if err != nil {
		return false, fmt.Errorf("unwire %s: %w", e.Name(), err)
	}
	var batch []message
	if found != nil && belongsTo(linkOf(found), e) {
		queued = true
		if !dying(found) {
			batch = append(batch, setLink(found.Index, -1, "take link "+want.Name+" down", group(hostnet.LinkGroupTrash)))
		}
	}
	for _, r := range state.Rules {
		if r.Priority == hostnet.RuleFromPod {
			r.Table = 0 // whichever
		}
		batch = append(batch, ruleMessage(unix.RTM_DELRULE, 0, r))
	}
	each, err := h.request(ctx, batch...)
	if err == nil {
		err = firstError(each, unix.ENOENT, unix.ENODEV, unix.ESRCH)
	}
	if err != nil {
		return false, fmt.Errorf("unwire %s: %w", e.Name(), err)
	}
	if queued {
		h.toReaper(found)
	}
	return queued, nil
}

// toReaper notes a link that was put away and tells the reaper. Should the link
// go by itself before, with its namespace, it is reported all the same.
func (h *Host) toReaper(a *netlink.LinkAttrs) {
	h.mu.Lock()
	h.trashed[a.Index] = wiredOf(a)
	h.mu.Unlock()
	h.kick()
}

// belongsTo reports whether a found link is the endpoint's: by its alias, or, half
// made, by its MAC, which follows from the endpoint's key.
func belongsTo(have hostnet.Link, e endpoint.Endpoint) bool {
	if a, ok := hostnet.ParseAlias(have.Alias); ok {
		return a.Key == e.Key
	}
	return have.Ours() && have.MAC == e.HostMAC
}

// kick tells the reaper that there is work.
func (h *Host) kick() {
	select {
	case h.trash <- struct{}{}:
	default:
	}
}
