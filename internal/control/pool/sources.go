package pool

import (
	"time"

	"github.com/trunkline/trunkline/internal/control/state"
	"github.com/trunkline/trunkline/internal/edge/ec2"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// startSources enters the services that the pool reads facts from, before their first call.
func (p *Pool) startSources(now time.Time) {
	for _, name := range []state.SourceName{state.Metadata, state.Credentials, state.EC2} {
		state.Set(p.State, p.Owned.Sources, state.Source{Name: name, Since: now})
	}
}

// note records the end of a call of a service, and reports the node if it began or ceased
// to answer.
func (p *Pool) note(name state.SourceName, err error) {
	var was, now state.Source
	_ = p.State.DB.Update(func(txn *table.Txn) error { // the table has no index beside the primary one
		was, _, _ = p.Owned.Sources.Get(txn, state.SourcesByName().Query(name))
		was.Name = name
		now = was.After(err, time.Now())
		_, err := p.Owned.Sources.Insert(txn, now)
		return err
	})
	if was.Failure == "" && now.Failure != "" {
		p.Log.Warn("a service does not answer", "what", string(name), "error", err, "prevents", name.Prevents())
	}
	if (was.Failure == "") != (now.Failure == "") {
		p.Report()
	}
}

// noteEC2 records the end of a call of EC2. It needs credentials: without them it is not
// sent, and EC2 may refuse them.
func (p *Pool) noteEC2(err error) {
	switch {
	case ec2.IsUnsent(err):
		p.note(state.Credentials, err)
	case ec2.IsCredentials(err):
		p.note(state.Credentials, err)
		p.note(state.EC2, nil)
	default:
		if err == nil || ec2.Code(err) != "" {
			p.note(state.Credentials, nil)
		}
		p.note(state.EC2, err)
	}
}
