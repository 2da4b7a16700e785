package state

import (
	"time"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

// SourceName names a service that the agent reads facts from.
type SourceName string

// Sources of a node that uses EC2, and of every node the API server.
const (
	Metadata    SourceName = "instance metadata"
	Credentials SourceName = "credentials"
	EC2         SourceName = "EC2"
	APIServer   SourceName = "API server"
)

// Source is whether a service answers: a row of the table "sources".
type Source struct {
	Name SourceName
	// Since is when the first of the last calls ended that all succeeded, or all failed;
	// before the end of the first call, when the agent started.
	Since time.Time
	// Answered is when a call last succeeded; zero: none has since the agent started.
	Answered time.Time
	// Failure is the error of the last call; empty if it succeeded, or none has ended.
	Failure string
}

// answerWithin is how long a service may take to answer for the first time before it is
// reported as one that does not: failed calls are repeated for up to 80 s.
const answerWithin = 5 * time.Second

// Problem is why the service does not answer; empty if it does.
func (s Source) Problem(now time.Time) string {
	if s.Failure == "" && s.Answered.IsZero() && now.Sub(s.Since) >= answerWithin {
		return "no call has succeeded since the agent started"
	}
	return s.Failure
}

// After returns the source after a call, which failed with err or succeeded.
func (s Source) After(err error, now time.Time) Source {
	next := Source{Name: s.Name, Since: s.Since, Answered: s.Answered}
	if err != nil {
		next.Failure = err.Error()
	} else {
		next.Answered = now
	}
	if (s.Failure == "") != (next.Failure == "") || s.Answered.IsZero() && err == nil {
		next.Since = now
	}
	return next
}

// Prevents is what does not happen while a source does not answer. Pods that run keep
// their network in each case.
func (n SourceName) Prevents() string {
	switch n {
	case Metadata:
		return "the VPC's ranges are not followed, and credentials of the instance's role are not renewed"
	case Credentials, EC2:
		return "the pool neither grows nor shrinks: a pod gets an address while one is free"
	case APIServer:
		return "pods that this node has not seen yet get no address, and nothing is reported"
	}
	return ""
}

// SourcesByName is the primary index of the table "sources".
func SourcesByName() table.Index[Source, SourceName] {
	return table.By("name", func(s Source) SourceName { return s.Name }, table.String[SourceName])
}

func sourceSchema() table.Schema[Source] {
	return table.Schema[Source]{
		Name: "sources", Primary: SourcesByName(),
		Columns: []string{"SOURCE", "ANSWERED", "SINCE", "FAILURE"},
		Cells: func(s Source) []string {
			return []string{string(s.Name), clock(s.Answered), clock(s.Since), s.Failure}
		},
	}
}

// Sources are the services that the backend reads facts from.
func (s *Store) Sources() []Source { return list(s.owned.backend.Sources.All(s.DB.Snapshot())) }
