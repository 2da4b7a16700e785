package ec2

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Kind is what an intent wants done.
type Kind string

// Kinds of intent.
const (
	Create   Kind = "create"   // an interface in Subnet with Groups and Count secondary addresses
	Attach   Kind = "attach"   // ENI to Instance at Device, deleted with the instance
	Assign   Kind = "assign"   // Count more addresses on ENI
	Restore  Kind = "restore"  // Addresses, which ENI had, on ENI again
	Unassign Kind = "unassign" // Addresses leave ENI
	Detach   Kind = "detach"   // ENI by Attachment
	Delete   Kind = "delete"   // ENI
)

// frees reports whether k gives something back.
func (k Kind) frees() bool { return k == Unassign || k == Detach || k == Delete }

// Intent is something wanted of EC2, as it is written to the journal before the
// first call. Its fields are the whole of what a later process needs to finish it.
type Intent struct {
	// ID is unique for ever: the client token of a create, and the value of
	// vpc.TagIntent. At most 64 ASCII characters.
	ID    string    `json:"id"`
	Kind  Kind      `json:"kind"`
	Room  string    `json:"room,omitempty"` // who wants it, for people
	Began time.Time `json:"began"`

	Instance    vpc.InstanceID        `json:"instance,omitempty"`
	Subnet      vpc.SubnetID          `json:"subnet,omitempty"`
	Groups      []vpc.SecurityGroupID `json:"groups,omitempty"`
	Description string                `json:"description,omitempty"`
	// Tags of a created interface. Executor adds vpc.TagIntent.
	Tags       map[string]string `json:"tags,omitempty"`
	ENI        vpc.ENIID         `json:"eni,omitempty"`
	Attachment vpc.AttachmentID  `json:"attachment,omitempty"`
	Device     int               `json:"device,omitempty"`
	Card       int               `json:"card,omitempty"` // network card index
	Count      int               `json:"count,omitempty"`
	Addresses  []netip.Addr      `json:"addresses,omitempty"`
	// Held is, for Assign, every secondary address of ENI by our record, Recent
	// those given back so lately that a describe may still show them: neither is
	// the effect of this intent.
	Held   []netip.Addr `json:"held,omitempty"`
	Recent []netip.Addr `json:"recent,omitempty"`
}

// String names the intent in error texts and logs.
func (in Intent) String() string {
	switch in.Kind {
	case Create:
		return fmt.Sprintf("create interface in %s with %d addresses", in.Subnet, in.Count)
	case Attach:
		return fmt.Sprintf("attach %s to %s at device %d", in.ENI, in.Instance, in.Device)
	case Assign:
		return fmt.Sprintf("assign %d addresses to %s", in.Count, in.ENI)
	case Restore:
		return fmt.Sprintf("assign %v to %s again", in.Addresses, in.ENI)
	case Unassign:
		return fmt.Sprintf("unassign %v from %s", in.Addresses, in.ENI)
	case Detach, Delete:
		return fmt.Sprintf("%s %s", in.Kind, in.ENI)
	}
	return fmt.Sprintf("unknown intent %q", string(in.Kind))
}

// check says what is wrong with an intent.
func (in Intent) check() error {
	if in.ID == "" || len(in.ID) > 64 {
		return fmt.Errorf("%s: the intent's id %q: 1 to 64 characters are needed", in, in.ID)
	}
	if what := in.lacks(); what != "" {
		return fmt.Errorf("%s: the intent has no %s", in, what)
	}
	for _, list := range [][]netip.Addr{in.Addresses, in.Held} {
		for _, a := range list {
			if !a.Is4() {
				return fmt.Errorf("%s: address %s: IPv6 on interfaces: %w", in, a, ErrUnsupported)
			}
		}
	}
	switch in.Kind {
	case Create, Attach, Assign, Restore, Unassign, Detach, Delete:
		return nil
	}
	return fmt.Errorf("%s: %w", in, ErrUnsupported)
}

// lacks names a field that the kind needs and the intent does not have, or nothing.
func (in Intent) lacks() string {
	switch {
	case in.Kind == Create && in.Subnet == "":
		return "subnet"
	case in.Kind != Create && in.ENI == "":
		return "interface"
	case in.Kind == Attach && in.Instance == "":
		return "instance"
	case in.Kind == Detach && in.Attachment == "":
		return "attachment"
	case in.Kind == Assign && in.Count < 1:
		return "count"
	case (in.Kind == Unassign || in.Kind == Restore) && len(in.Addresses) == 0:
		return "addresses"
	}
	return ""
}

// Outcome is what became of an intent.
type Outcome struct {
	// Done: the effect is there, now or since an earlier attempt. Otherwise EC2
	// refused for good and nothing happened; Code and Message say why.
	Done bool `json:"done"`
	// Interface is, for Create, what was made.
	Interface *Interface `json:"interface,omitempty"`
	// Addresses are, for Assign and Create, the new secondary ones.
	Addresses  []netip.Addr     `json:"addresses,omitempty"`
	Attachment vpc.AttachmentID `json:"attachment,omitempty"`
	Device     int              `json:"device,omitempty"`
	Code       string           `json:"code,omitempty"`
	Message    string           `json:"message,omitempty"`
	// Warning: done, but for a part that people should know of.
	Warning string `json:"warning,omitempty"`
}

// Entry is what a journal keeps of an intent: the intent, and once it is known what
// became of it.
type Entry struct {
	Intent  Intent   `json:"intent"`
	Outcome *Outcome `json:"outcome,omitempty"`
}

// Journal writes intents ahead of their calls. Begin returns once the intent is on
// the disk; an error means that nothing may be called. Finish forgets it, or keeps
// its outcome for people. Both may be called again with the same id.
type Journal interface {
	Begin(ctx context.Context, in Intent) error
	Finish(ctx context.Context, id string, out Outcome) error
}
