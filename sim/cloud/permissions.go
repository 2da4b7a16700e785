package cloud

import "github.com/trunkline/trunkline/internal/core/vpc"

// Permission types of an interface.
const (
	PermitAttach    = "INSTANCE-ATTACH"
	PermitAssociate = "EIP-ASSOCIATE"
)

// Permission allows another account to attach an interface to its instances, or associate its
// elastic addresses with it.
type Permission struct {
	ID        string // eni-perm-…
	Interface vpc.ENIID
	Account   string
	Type      string
}

// Grant gives an account a permission for the interface. Granting it again returns the one
// that exists; only one account can have permissions. The code and the text of that error
// are ours. Source: API_CreateNetworkInterfacePermission.html.
func (h InterfaceHandle) Grant(account, kind string) (*Permission, error) {
	var made *Permission
	err := h.cloud.apply(func(ch *change) error {
		if ch.Interfaces[h.id] == nil {
			return KindInterface.NotFound(string(h.id))
		}
		for _, p := range ch.Permissions {
			switch {
			case p.Interface != h.id:
			case p.Account != account:
				return InvalidParameter("The network interface '%s' has a permission for account %s.", h.id, p.Account)
			case p.Type == kind:
				made = p
				return nil
			}
		}
		made = &Permission{ID: ch.newID("eni-perm-"), Interface: h.id, Account: account, Type: kind}
		ch.Permissions[made.ID] = made
		return nil
	})
	return made, err
}

// PermissionHandle changes one permission.
type PermissionHandle struct {
	cloud *Cloud
	id    string
}

// Permission returns the handle of a permission, which need not exist.
func (c *Cloud) Permission(id string) PermissionHandle { return PermissionHandle{c, id} }

// Revoke deletes the permission. Without force it is refused while the account uses it:
// has the interface attached to an instance of its own. The text of that error is ours.
// Source: API_DeleteNetworkInterfacePermission.html.
func (h PermissionHandle) Revoke(force bool) error {
	return h.cloud.apply(func(ch *change) error {
		p := ch.Permissions[h.id]
		if p == nil {
			return KindPermission.NotFound(h.id)
		}
		at := ch.Interfaces[p.Interface].Attachment
		if !force && p.Account == ch.Account && at != nil && at.Instance != "" {
			return Errorf("OperationNotPermitted", "The network interface '%s' is attached to an instance of account %s.", p.Interface, p.Account)
		}
		delete(ch.Permissions, h.id)
		return nil
	})
}

// deleteInterface deletes an interface with its permissions and, of a trunk, the
// associations of its branches.
func deleteInterface(ch *change, id vpc.ENIID) {
	ch.endTrunk(id)
	delete(ch.Interfaces, id)
	for _, p := range ch.Permissions {
		if p.Interface == id {
			delete(ch.Permissions, p.ID)
		}
	}
}
