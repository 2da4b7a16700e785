package ec2

import (
	"strconv"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// instanceAPI has the actions on attributes and states of instances.
type instanceAPI struct{ *api }

func (a instanceAPI) actions() []query.Action {
	return []query.Action{
		query.Handle(query.Spec[modifyInstance, returned]{
			Name: "ModifyInstanceAttribute", Page: page("ModifyInstanceAttribute"), Permit: permitModifyInstance, Do: a.modifyInstance,
		}),
		query.Handle(query.Spec[describeStatus, statusList]{
			Name: "DescribeInstanceStatus", Page: page("DescribeInstanceStatus"), ReadOnly: true,
			Permit: onAnyResource[describeStatus], Do: listStatus,
		}),
		query.Handle(query.Spec[describeTopology, topologyList]{
			Name: "DescribeInstanceTopology", Page: page("DescribeInstanceTopology"), ReadOnly: true,
			Permit: onAnyResource[describeTopology], Do: listTopology,
		}),
	}
}

// modifyInstance names one attribute by its own parameter, or by Attribute and Value.
type modifyInstance struct {
	query.DryRun
	ID              string     `q:"InstanceId,required"`
	Attribute       string     `q:"Attribute"`
	Value           string     `q:"Value"`
	Groups          []string   `q:"GroupId"`
	SourceDestCheck *boolValue `q:"SourceDestCheck"`
	Protected       *boolValue `q:"DisableApiTermination"`
	Type            *textValue `q:"InstanceType"`
}

// permitModifyInstance requires permission for the instance and its new groups.
func permitModifyInstance(c *query.Call, r *modifyInstance) ([]iam.Request, error) {
	q := &authorization{call: c}
	q.instance(r.ID)
	for _, id := range r.Groups {
		q.group(id)
	}
	return q.result()
}

// named moves an attribute that Attribute names into its own field. Source:
// API_ModifyInstanceAttribute.html, Value.
func (r *modifyInstance) named() error {
	switch r.Attribute {
	case "":
		return nil
	case "disableApiTermination":
		if r.Value == "" {
			return nil // the attribute has its own parameter
		}
		on, err := strconv.ParseBool(r.Value)
		if err != nil {
			return cloud.InvalidParameter("Value (%s) for parameter value is invalid. Expected a boolean.", r.Value)
		}
		r.Protected = &boolValue{on}
	case "instanceType":
		if r.Value != "" {
			r.Type = &textValue{r.Value}
		}
	case "sourceDestCheck", "groupSet":
		if r.Value != "" {
			return cloud.Errorf("InvalidParameterCombination", "The attribute %s cannot be set by the parameter value.", r.Attribute)
		}
	default:
		return cloud.InvalidParameter("Value (%s) for parameter attribute is invalid. "+
			"Expected one of: disableApiTermination, groupSet, instanceType, sourceDestCheck", r.Attribute)
	}
	return nil
}

func (a instanceAPI) modifyInstance(c *query.Call, r *modifyInstance) (*returned, error) {
	if err := r.named(); err != nil {
		return nil, err
	}
	p := &parser{}
	p.exclusive(len(r.Groups) > 0, r.SourceDestCheck != nil, r.Protected != nil, r.Type != nil)
	id := vpc.InstanceID(r.ID)
	switch {
	case p.err != nil:
		return nil, p.err
	case r.Protected != nil:
		return done(a.cloud.Instance(id).Protect(r.Protected.Value))
	case r.Type != nil:
		return nil, a.keepType(id, r.Type.Value)
	case len(r.Groups) == 0 && r.SourceDestCheck == nil:
		return nil, noAttributes()
	}
	eni, err := onlyInterface(c.State, id)
	if err != nil {
		return nil, err
	}
	if len(r.Groups) > 0 {
		return done(a.cloud.Interface(eni).SetGroups(groupIDs(r.Groups)))
	}
	return done(a.cloud.Interface(eni).SetSourceDestCheck(r.SourceDestCheck.Value))
}

// keepType is the error for a change of an instance's type, which needs a stopped instance:
// there are none here. Source: API_ModifyInstanceAttribute.html, InstanceType.
func (a instanceAPI) keepType(id vpc.InstanceID, name string) error {
	if _, known := a.cloud.TypeLimits()[name]; !known {
		return cloud.Errorf("InvalidInstanceAttributeValue", "Invalid value '%s' for InstanceType.", name)
	}
	return cloud.Errorf("IncorrectInstanceState", "The instance '%s' is not in the 'stopped' state.", id)
}

type describeStatus struct {
	query.DryRun
	Page
	IDs     []string `q:"InstanceId"`
	Filters []Filter `q:"Filter"`
	All     bool     `q:"IncludeAllInstances"`
	// Managed has no effect: no instance is hidden.
	Managed bool `q:"IncludeManagedResources"`
}

type statusDetailXML struct {
	Name   string `q:"name"`
	Status string `q:"status"`
}

type statusSummaryXML struct {
	Status  string            `q:"status"`
	Details []statusDetailXML `q:"details,omitempty"`
}

// statusXML is InstanceStatus. Source: API_InstanceStatus.html.
type statusXML struct {
	ID       string           `q:"instanceId"`
	Zone     string           `q:"availabilityZone"`
	ZoneID   string           `q:"availabilityZoneId"`
	State    stateXML         `q:"instanceState"`
	Instance statusSummaryXML `q:"instanceStatus"`
	System   statusSummaryXML `q:"systemStatus"`
	Operator operatorXML      `q:"operator"`
}

type statusList struct {
	Statuses  []statusXML `q:"instanceStatusSet"`
	NextToken string      `q:"nextToken,omitempty"`
}

// newStatusXML shows the checks of an instance: those of a running one pass, because
// guests have no failures that EC2 could see.
func newStatusXML(n *cloud.Instance) statusXML {
	checks := statusSummaryXML{Status: "not-applicable"}
	if n.State == cloud.Running {
		checks = statusSummaryXML{"ok", []statusDetailXML{{"reachability", "passed"}}}
	}
	return statusXML{
		ID: string(n.ID), Zone: n.Zone, ZoneID: ZoneID(n.Zone), State: newStateXML(n.State), Instance: checks, System: checks,
	}
}

// listStatus lists running instances, or all of them.
func listStatus(c *query.Call, r *describeStatus) (*statusList, error) {
	out, next, err := listPage(c, listing[*cloud.Instance]{
		kind: cloud.KindInstance, set: "instances", all: cloud.Sorted(c.State.Instances), ids: r.IDs, filters: r.Filters, page: r.Page,
		id:    func(n *cloud.Instance) string { return string(n.ID) },
		only:  func(n *cloud.Instance) bool { return r.All || n.State == cloud.Running },
		attrs: statusAttributes(),
	}, newStatusXML)
	return &statusList{out, next}, err
}

// statusAttributes are the filters of DescribeInstanceStatus. No instance has scheduled
// events.
func statusAttributes() attributes[*cloud.Instance] {
	shown := func(f func(statusXML) string) func(*cloud.Instance) []string {
		return func(n *cloud.Instance) []string { return one(f(newStatusXML(n))) }
	}
	details := func(of func(statusXML) statusSummaryXML) func(*cloud.Instance) []string {
		return func(n *cloud.Instance) []string {
			return each(of(newStatusXML(n)).Details, func(d statusDetailXML) string { return d.Status })
		}
	}
	return merged(attributes[*cloud.Instance]{
		"availability-zone":            shown(func(x statusXML) string { return x.Zone }),
		"availability-zone-id":         shown(func(x statusXML) string { return x.ZoneID }),
		"instance-state-code":          shown(func(x statusXML) string { return strconv.Itoa(x.State.Code) }),
		"instance-state-name":          shown(func(x statusXML) string { return x.State.Name }),
		"instance-status.status":       shown(func(x statusXML) string { return x.Instance.Status }),
		"instance-status.reachability": details(func(x statusXML) statusSummaryXML { return x.Instance }),
		"system-status.status":         shown(func(x statusXML) string { return x.System.Status }),
		"system-status.reachability":   details(func(x statusXML) statusSummaryXML { return x.System }),
		"operator.managed":             shown(func(x statusXML) string { return strconv.FormatBool(x.Operator.Managed) }),
	}, absent[*cloud.Instance](
		"event.code", "event.description", "event.instance-event-id", "event.not-after", "event.not-before", "event.not-before-deadline",
		"operator.principal",
	))
}
