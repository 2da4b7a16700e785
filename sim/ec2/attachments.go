package ec2

import (
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

func (a *api) attachmentActions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[attachInterface, attached]{
			Name: "AttachNetworkInterface", Page: page("AttachNetworkInterface"),
			Permit: permitAttach, Do: a.attach,
		}),
		query.Handle(query.Spec[detachInterface, returned]{
			Name: "DetachNetworkInterface", Page: page("DetachNetworkInterface"),
			Permit: permitDetach,
			Do: func(_ *query.Call, r *detachInterface) (*returned, error) {
				return done(a.cloud.Detach(vpc.AttachmentID(r.ID)))
			},
		}),
	}
}

type attachInterface struct {
	query.DryRun
	Interface   string `q:"NetworkInterfaceId,required"`
	Instance    string `q:"InstanceId,required"`
	DeviceIndex int    `q:"DeviceIndex,required"`
	NetworkCard int    `q:"NetworkCardIndex"`
}

type attached struct {
	ID          string `q:"attachmentId"`
	NetworkCard int    `q:"networkCardIndex"`
}

func permitAttach(c *query.Call, r *attachInterface) ([]iam.Request, error) {
	q := &authorization{call: c}
	q.eni(r.Interface)
	q.instance(r.Instance)
	return q.result()
}

func (a *api) attach(_ *query.Call, r *attachInterface) (*attached, error) {
	made, err := a.cloud.Interface(vpc.ENIID(r.Interface)).Attach(vpc.InstanceID(r.Instance), r.DeviceIndex, r.NetworkCard)
	if err != nil {
		return nil, err
	}
	return &attached{ID: string(made.ID), NetworkCard: made.NetworkCard}, nil
}

type detachInterface struct {
	query.DryRun
	ID string `q:"AttachmentId,required"`
	// Force is accepted and has no effect: detaching does not wait for the guest.
	Force bool `q:"Force"`
}

// permitDetach requires permission for the interface and the instance of an
// attachment. An attachment is no resource of its own, so an unknown one is refused
// as such.
func permitDetach(c *query.Call, r *detachInterface) ([]iam.Request, error) {
	owner := c.State.AttachmentOwner(vpc.AttachmentID(r.ID))
	if owner == nil {
		if err := cloud.KindAttachment.CheckID(r.ID); err != nil {
			return nil, err
		}
		return nil, cloud.KindAttachment.NotFound(r.ID)
	}
	q := &authorization{call: c}
	q.eni(string(owner.ID))
	if id := owner.Attachment.Instance; id != "" {
		q.instance(string(id))
	}
	return q.result()
}
