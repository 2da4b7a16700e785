package ec2

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Associations are those of all trunks.
type Associations struct {
	At time.Time // when the listing began; zero: none was made
	by map[vpc.ENIID]association
}

// Len is how many there are.
func (a Associations) Len() int { return len(a.by) }

// association is one of a branch with a trunk.
type association struct {
	ID    trunk.AssociationID
	Trunk vpc.ENIID
	VLAN  int
}

// Bounds of a listing of associations, which has no filter by trunk. EC2's largest page is a
// little larger.
const (
	associationPage  = 250
	associationPages = 2000
)

// Associations lists the associations of all trunks. With 100,000 branches it has 400 pages, of which each
// is a read with its own time and its own share of the budget.
func (t Trunks) Associations(ctx context.Context) (Associations, error) {
	const action = "DescribeTrunkInterfaceAssociations"
	out := Associations{At: time.Now(), by: map[vpc.ENIID]association{}}
	next := ""
	for n := range associationPages {
		page, err := read(ctx, t.Executor, action, fmt.Sprintf("page %d %s", n+1, next), func(ctx context.Context, api API) (*ec2.DescribeTrunkInterfaceAssociationsOutput, error) {
			req := &ec2.DescribeTrunkInterfaceAssociationsInput{MaxResults: aws.Int32(associationPage)}
			if next != "" {
				req.NextToken = aws.String(next)
			}
			return api.DescribeTrunkInterfaceAssociations(ctx, req)
		})
		if err != nil {
			return Associations{}, err
		}
		for _, a := range page.InterfaceAssociations {
			out.by[vpc.ENIID(aws.ToString(a.BranchInterfaceId))] = association{
				ID: trunk.AssociationID(aws.ToString(a.AssociationId)), Trunk: vpc.ENIID(aws.ToString(a.TrunkInterfaceId)), VLAN: int(aws.ToInt32(a.VlanId)),
			}
		}
		if next = aws.ToString(page.NextToken); next == "" {
			return out, nil
		}
	}
	return Associations{}, fmt.Errorf("describe associations of trunks: more than %d pages", associationPages)
}
