package link

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
)

// Unwire cuts a pod off at once and leaves its link to the reaper: rules go, the
// link goes down, which takes routes and neighbours with it, and into the trash
// group. It takes some 0.1 ms; deleting the link on the spot would take 25.
//
// The link is only touched if it belongs to the attachment (p.ContainerID and
// p.IfName): a late DEL of an old sandbox leaves the newer one's alone. The
// addresses must still be the attachment's: their rules are deleted in any case.
// What is gone already is gone; queued tells whether the reaper will report the
// link as gone.
func (h *Host) Unwire(ctx context.Context, p hostnet.Pod) (queued bool, err error) {
	state := hostnet.ForPod(p)
	end := h.account.taking(state)
	defer func() { end(err) }()
	want := state.Links[0]
	found, err := h.find(want.Name)
	if err != nil {
		return false, fmt.Errorf("unwire %s/%s: %w", p.Namespace, p.Name, err)
	}
	var batch []message
	if found != nil && ofAttachment(linkOf(found), p, want) {
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
		return false, fmt.Errorf("unwire %s/%s: %w", p.Namespace, p.Name, err)
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

// ofAttachment reports whether a found link is the attachment's: by its alias,
// or, half made, by its address, which follows from the attachment.
func ofAttachment(have hostnet.Link, p hostnet.Pod, want hostnet.Link) bool {
	if a, ok := hostnet.ParseAlias(have.Alias); ok {
		return a.ContainerID == p.ContainerID && a.IfName == p.IfName
	}
	return have.Ours() && have.MAC == want.MAC
}

// kick tells the reaper that there is work.
func (h *Host) kick() {
	select {
	case h.trash <- struct{}{}:
	default:
	}
}
