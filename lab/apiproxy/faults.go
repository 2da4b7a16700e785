package apiproxy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/sim/faults"
)

// What a fault does to the requests that it selects.
const (
	// Fail answers with Status, and the API server sees no request.
	Fail = "fail"
	// Hang never answers.
	Hang = "hang"
	// Disconnect ends the request without an answer.
	Disconnect = "disconnect"
	// Expire answers watches that continue from a version with an event of code 410, after which
	// clients list again. Other requests have no fault.
	Expire = "expire"
	// OmitGroup removes Group from discovery documents.
	OmitGroup = "omit-group"
	// StaleGroup empties the versions of Group in aggregated discovery, and marks them as stale, as
	// the API server does for a group that does not answer it.
	StaleGroup = "stale-group"
)

// Fault selects requests, and what happens to them. The first that selects a request applies.
type Fault struct {
	// Path is the beginning of the requests' path, such as /apis/vpcresources.k8s.aws; "/" is all.
	Path string `json:"path"`
	// User limits it to a user, such as system:serviceaccount:kube-system:trunkline-admission.
	User string `json:"user,omitempty"`
	// Method limits it to an HTTP method, such as PATCH.
	Method string `json:"method,omitempty"`
	// Watch limits it to watches.
	Watch bool `json:"watch,omitempty"`
	// Do is one of the constants; empty is a delay only.
	Do string `json:"do,omitempty"`
	// Latency delays the answer.
	Latency faults.Duration `json:"latency,omitempty"`
	Status  int             `json:"status,omitempty"` // of Fail
	Group   string          `json:"group,omitempty"`  // of OmitGroup and StaleGroup
}

// Faults are all faults in force.
type Faults []Fault

// Check refuses invalid faults.
func (f Faults) Check() error {
	for i, fault := range f {
		if err := fault.check(); err != nil {
			return fmt.Errorf("faults[%d]: %w", i, err)
		}
	}
	return nil
}

func (f Fault) check() error {
	ofGroup := f.Do == OmitGroup || f.Do == StaleGroup
	switch {
	case !strings.HasPrefix(f.Path, "/"):
		return fmt.Errorf("path %q: must begin with /", f.Path)
	case f.Do == "" && f.Latency == 0:
		return fmt.Errorf("path %s: neither do nor latency", f.Path)
	case f.Do != "" && !slices.Contains([]string{Fail, Hang, Disconnect, Expire, OmitGroup, StaleGroup}, f.Do):
		return fmt.Errorf("do %q: must be %s, %s, %s, %s, %s or %s", f.Do, Fail, Hang, Disconnect, Expire, OmitGroup, StaleGroup)
	case f.Do == Fail && (f.Status < 400 || f.Status > 599):
		return fmt.Errorf("status %d of %s: must be from 400 to 599", f.Status, Fail)
	case f.Do != Fail && f.Status != 0:
		return fmt.Errorf("status is for %q only", Fail)
	case ofGroup != (f.Group != ""):
		return fmt.Errorf("group %q: %s and %s need one, others have none", f.Group, OmitGroup, StaleGroup)
	}
	return nil
}

// of returns the first fault of a request; nil if none selects it.
func (f Faults) of(r request) *Fault {
	for i := range f {
		fault := &f[i]
		if strings.HasPrefix(r.path, fault.Path) && (fault.User == "" || fault.User == r.user) &&
			(fault.Method == "" || fault.Method == r.method) && (!fault.Watch || r.watch) && (fault.Do != Expire || r.resumes) && (fault.Group == "" || isDiscovery(r.path)) {
			return fault
		}
	}
	return nil
}
