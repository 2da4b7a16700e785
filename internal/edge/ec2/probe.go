package ec2

import (
	"context"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// Probe returns how EC2 refuses AssociateTrunkInterface, by a dry run: with OperationNotPermitted to
// accounts to which AWS does not allow it, with UnauthorizedOperation to a role without the right. It is
// empty if EC2 does not refuse it; that the interfaces, which the dry run has to name, do not exist is
// no refusal. Source: the parameter DryRun in API_AssociateTrunkInterface.html.
func (t Trunks) Probe(ctx context.Context) (refusal string, err error) {
	const none = "eni-00000000000000000"
	err = sender{t.Executor}.change(ctx, "AssociateTrunkInterface", "dry run", func(ctx context.Context, api API) error {
		_, err := api.AssociateTrunkInterface(ctx, &ec2.AssociateTrunkInterfaceInput{
			DryRun: aws.Bool(true), TrunkInterfaceId: aws.String(none), BranchInterfaceId: aws.String(none), VlanId: aws.Int32(1),
		})
		if Code(err) == "DryRunOperation" || IsNotFound(err) {
			return nil
		}
		return err
	})
	if slices.Contains([]string{"OperationNotPermitted", "UnauthorizedOperation"}, Code(err)) {
		return err.Error(), nil
	}
	return "", err
}
