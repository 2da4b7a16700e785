package trunk

import (
	"context"
	"errors"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"

	vpcresources "github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/podeni"
	core "github.com/trunkline/trunkline/internal/core/trunk"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// carryOut makes one try of an action. It uses nothing of the node that a pass changes.
func (n *node) carryOut(ctx context.Context, i flight) result {
	r := result{id: i.Action.ID}
	var err error
	if i.Action.Kind == core.Bind {
		if err = n.c.objects.AnnotatePod(ctx, i.pod, string(i.Action.Pod), i.text); err != nil {
			f := core.Failure{Reason: core.FailOther, Definite: kube.Refused(err), Message: err.Error()}
			if errors.Is(err, kube.ErrNoPod) {
				f.Reason = core.FailNotFound
			}
			r.failure = &f
		}
	} else if r.outcome, err = n.c.o.EC2.Do(ctx, i.Action, i.Unknown || i.Tries > 1); err != nil {
		f := ec2.TrunkFailure(err)
		r.failure = &f
	}
	return r
}

// flight is a call with what it needs beside its action.
type flight struct {
	core.Intent
	pod  kube.PodRef // of Bind
	text string      // of Bind: the annotation
}

// prepare reads what a call needs of the record.
func (n *node) prepare(i core.Intent) (flight, error) {
	f := flight{Intent: i}
	if i.Action.Kind != core.Bind {
		return f, nil
	}
	b := n.rec.state.Branches[i.Action.Branch]
	name := n.rec.names[i.Action.Pod]
	f.pod = kube.PodRef{Namespace: name.Namespace, Name: name.Name}
	text, err := podeni.Encode([]podeni.Entry{n.rec.entry(b)})
	if err != nil {
		return f, fmt.Errorf("branch %s of pod %s: %w", b.ENI, f.pod, err)
	}
	f.text = text
	return f, nil
}

func sameLedger(a, b *vpcresources.BranchLedger) bool {
	return apiequality.Semantic.DeepEqual(a, b)
}
