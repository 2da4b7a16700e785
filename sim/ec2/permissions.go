package ec2

import (
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// permissionAPI has the actions on permissions of interfaces.
type permissionAPI struct{ *api }

func (a permissionAPI) actions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[createPermission, createdPermission]{
			Name: "CreateNetworkInterfacePermission", Page: page("CreateNetworkInterfacePermission"),
			Permit: permitPermission, Do: a.grant,
		}),
		query.Handle(query.Spec[deletePermission, returned]{
			Name: "DeleteNetworkInterfacePermission", Page: page("DeleteNetworkInterfacePermission"),
			Permit: onAnyResource[deletePermission],
			Do: func(_ *query.Call, r *deletePermission) (*returned, error) {
				if err := cloud.KindPermission.CheckID(r.ID); err != nil {
					return nil, err
				}
				return done(a.cloud.Permission(r.ID).Revoke(r.Force))
			},
		}),
		query.Handle(query.Spec[describePermissions, permissionList]{
			Name: "DescribeNetworkInterfacePermissions", Page: page("DescribeNetworkInterfacePermissions"), ReadOnly: true,
			Permit: onAnyResource[describePermissions], Do: listPermissions,
		}),
	}
}

type createPermission struct {
	query.DryRun
	Interface  string `q:"NetworkInterfaceId,required"`
	Permission string `q:"Permission,required"`
	Account    string `q:"AwsAccountId"`
}

type deletePermission struct {
	query.DryRun
	ID    string `q:"NetworkInterfacePermissionId,required"`
	Force bool   `q:"Force"`
}

type permissionStateXML struct {
	State string `q:"state"`
}

// interfacePermissionXML is NetworkInterfacePermission.
// Source: API_NetworkInterfacePermission.html.
type interfacePermissionXML struct {
	ID         string             `q:"networkInterfacePermissionId"`
	Interface  string             `q:"networkInterfaceId"`
	Account    string             `q:"awsAccountId"`
	Permission string             `q:"permission"`
	State      permissionStateXML `q:"permissionState"`
}

func newInterfacePermissionXML(p *cloud.Permission) interfacePermissionXML {
	return interfacePermissionXML{p.ID, string(p.Interface), p.Account, p.Type, permissionStateXML{"granted"}}
}

type createdPermission struct {
	Permission interfacePermissionXML `q:"interfacePermission"`
}

func permitPermission(c *query.Call, r *createPermission) ([]iam.Request, error) {
	q := &authorization{call: c}
	q.eni(r.Interface, keys{"ec2:permission": {r.Permission}})
	return q.result()
}

func (a permissionAPI) grant(_ *query.Call, r *createPermission) (*createdPermission, error) {
	switch {
	case r.Account == "":
		return nil, cloud.MissingParameter("awsAccountId")
	case !isAccount(r.Account):
		return nil, cloud.InvalidParameter("Value (%s) for parameter awsAccountId is invalid.", r.Account)
	case r.Permission != cloud.PermitAttach && r.Permission != cloud.PermitAssociate:
		return nil, cloud.InvalidParameter("Value (%s) for parameter permission is invalid.", r.Permission)
	}
	made, err := a.cloud.Interface(vpc.ENIID(r.Interface)).Grant(r.Account, r.Permission)
	if err != nil {
		return nil, err
	}
	return &createdPermission{newInterfacePermissionXML(made)}, nil
}

// isAccount reports whether s has the form of an account's number.
func isAccount(s string) bool {
	for _, digit := range []byte(s) {
		if digit < '0' || digit > '9' {
			return false
		}
	}
	return len(s) == 12
}

type describePermissions struct {
	Page
	IDs     []string `q:"NetworkInterfacePermissionId"`
	Filters []Filter `q:"Filter"`
}

type permissionList struct {
	Permissions []interfacePermissionXML `q:"networkInterfacePermissions"`
	NextToken   string                   `q:"nextToken,omitempty"`
}

func listPermissions(c *query.Call, r *describePermissions) (*permissionList, error) {
	out, next, err := listPage(c, listing[*cloud.Permission]{
		kind: cloud.KindPermission, set: "networkInterfacePermissionId", all: cloud.Sorted(c.State.Permissions),
		ids: r.IDs, filters: r.Filters, page: r.Page, most: 255, usual: 50,
		id:    func(p *cloud.Permission) string { return p.ID },
		attrs: permissionFilters(),
	}, newInterfacePermissionXML)
	return &permissionList{out, next}, err
}

// permissionFilters are the filters of DescribeNetworkInterfacePermissions. No permission
// is for a service.
func permissionFilters() attributes[*cloud.Permission] {
	const prefix = "network-interface-permission."
	return merged(attributes[*cloud.Permission]{
		prefix + "network-interface-permission-id": func(p *cloud.Permission) []string { return one(p.ID) },
		prefix + "network-interface-id":            func(p *cloud.Permission) []string { return one(string(p.Interface)) },
		prefix + "aws-account-id":                  func(p *cloud.Permission) []string { return one(p.Account) },
		prefix + "permission":                      func(p *cloud.Permission) []string { return one(p.Type) },
	}, absent[*cloud.Permission](prefix+"aws-service"))
}
