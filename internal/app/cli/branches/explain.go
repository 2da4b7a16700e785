package branches

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	trunkline "github.com/trunkline/trunkline/api/trunkline/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/securitygroup"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// Objects are what an explanation is made of.
type Objects struct {
	Pod      *corev1.Pod
	Account  *corev1.ServiceAccount        // of the pod; nil if there is none
	Policies []v1beta1.SecurityGroupPolicy // of the pod's namespace
	CNINode  *v1alpha1.CNINode             // of the pod's node; nil if there is none
	// Networks is the report of the pod's node, if there is one; of all nodes while the pod has none.
	Networks []trunkline.NodeNetwork
	// Groups are the SecurityGroups of the pod's groups. They are read where its node enforces groups.
	Groups []trunkline.SecurityGroup
	// Now is when all was read.
	Now time.Time
}

// Policy is what one policy says about the pod.
type Policy struct {
	Name     string   `json:"name"`
	Selected bool     `json:"selected"`
	Groups   []string `json:"groups,omitempty"`
	Why      string   `json:"why"`
}

// Explanation is which security groups a pod gets, and why.
type Explanation struct {
	Pod     string   `json:"pod"` // NAMESPACE/NAME
	Phase   string   `json:"phase"`
	Node    string   `json:"node,omitempty"`
	Account string   `json:"serviceAccount,omitempty"`
	Verdict string   `json:"verdict"`
	Why     string   `json:"why"`
	Groups  []string `json:"groups,omitempty"`
	// Mode is how the pod's node treats groups; empty if it is not known. EnforcedBy is who enforces
	// those of the pod; empty if that is not known, or if no policy selects the pod.
	Mode        trunkline.GroupMode `json:"mode,omitempty"`
	EnforcedBy  Enforcer            `json:"enforcedBy,omitempty"`
	EnforcedWhy string              `json:"enforcedWhy,omitempty"`
	// NodeGroups are the groups as the node knows them, where it enforces them.
	NodeGroups []Group `json:"nodeGroups,omitempty"`
	// Policies of the namespace, by name.
	Policies []Policy `json:"policies,omitempty"`
	// Requests is how many branches the containers request.
	Requests int64    `json:"requests"`
	Branches []Branch `json:"branches,omitempty"`
	// Annotation is what the annotation of the pod names, or why it cannot be used.
	Annotation string `json:"annotation,omitempty"`
	// Missing is what the pod lacks until it has its groups, in the order in which it is needed.
	Missing []string `json:"missing,omitempty"`
}

// Explain explains a pod.
func Explain(o Objects) Explanation {
	p := o.Pod
	d := decide(o)
	e := Explanation{
		Pod: p.Namespace + "/" + p.Name, Phase: string(p.Status.Phase), Node: p.Spec.NodeName, Account: p.Spec.ServiceAccountName,
		Verdict: d.Verdict.String(), Why: d.Why, Groups: d.Groups, Requests: Requests(p),
	}
	for _, m := range d.Matches {
		row := Policy{Name: m.Policy.Name, Selected: m.Selected, Why: m.Why}
		for i := range o.Policies {
			if o.Policies[i].Name == m.Policy.Name {
				row.Groups = o.Policies[i].Spec.SecurityGroups.Groups
			}
		}
		e.Policies = append(e.Policies, row)
	}
	var entries []podeni.Entry
	entries, e.Annotation = annotation(p)
	e.Branches = ofPod(o, entries)
	if g := mode(o); g != nil {
		e.Mode = g.Mode
	}
	if d.Verdict != securitygroup.NotSelected {
		e.EnforcedBy, e.EnforcedWhy = enforcer(o, e)
	}
	if e.EnforcedBy == ByNode && e.Node != "" {
		e.NodeGroups = nodeGroups(o, d.Groups)
	}
	e.Missing = missing(o, d, e, entries)
	return e
}

func decide(o Objects) securitygroup.Decision {
	policies := make([]securitygroup.Policy, len(o.Policies))
	for i := range o.Policies {
		policies[i] = kube.GroupPolicy(&o.Policies[i])
	}
	var account *securitygroup.Account
	if a := o.Account; a != nil {
		account = &securitygroup.Account{Ref: securitygroup.Ref{Namespace: a.Namespace, Name: a.Name}, Labels: a.Labels}
	}
	return securitygroup.Compile(policies).Select(securitygroup.FromPod(o.Pod), account)
}

// Requests is how many branches a pod requests: the sum of all containers, as the scheduler counts it.
func Requests(p *corev1.Pod) (n int64) {
	for _, c := range p.Spec.Containers {
		if q, ok := c.Resources.Requests[vpc.ResourcePodENI]; ok {
			n += q.Value()
		}
	}
	return n
}

func annotation(p *corev1.Pod) ([]podeni.Entry, string) {
	text, has := p.Annotations[vpc.AnnotationPodENI]
	if !has {
		return nil, ""
	}
	entries, err := podeni.Decode(text)
	if err != nil {
		return nil, err.Error()
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = fmt.Sprintf("%s with VLAN %d", e.ENI, e.VLAN)
	}
	return entries, strings.Join(names, ", ")
}

// ofPod are the branches that the controller recorded for the pod. AWS's records name no pods: of
// them, those in the annotation are its.
func ofPod(o Objects, entries []podeni.Entry) (list []Branch) {
	if o.CNINode == nil {
		return nil
	}
	for _, b := range Of([]v1alpha1.CNINode{*o.CNINode}).Branches {
		named := b.PodUID == "" && slices.ContainsFunc(entries, func(e podeni.Entry) bool { return string(e.ENI) == b.ENI })
		if b.PodUID == o.Pod.UID || named {
			list = append(list, b)
		}
	}
	return list
}

// missing is what keeps the pod from having exactly its groups. Each begins with what is wrong, and
// ends with what to do or who does it.
func missing(o Objects, d securitygroup.Decision, e Explanation, entries []podeni.Entry) (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	switch {
	case d.Verdict == securitygroup.NotSelected:
		if len(e.Branches) > 0 && !securitygroup.FromPod(o.Pod).Ended {
			add("no policy selects the pod, and it has a branch: it keeps the branch's groups until it ends")
		}
		if e.Requests > 0 && len(e.Branches) == 0 && !kube.Wired(o.Pod) && e.Mode == trunkline.GroupsOwn {
			add("no policy selects the pod, and it requests %s: no branch is made for it: create it again without the request, or create a policy", vpc.ResourcePodENI)
		}
		return list
	case d.Verdict == securitygroup.Refused:
		add("the pod is refused: %s: correct the policy or the group, or create the service account", d.Why)
		return list
	case e.EnforcedBy == ByNode:
		return missingOnNode(o, d, e)
	case e.EnforcedBy == "" && e.Mode == trunkline.GroupsUndecided:
		add("node %s does not start the pod until it is decided how it enforces groups: %s", e.Node, mode(o).Message)
		return list
	case e.EnforcedBy == ByNone:
		return []string{unprotected(o, e)}
	}
	return missingBranch(o, d, e, entries)
}

// missingBranch is the same for a pod that is to have a branch.
func missingBranch(o Objects, d securitygroup.Decision, e Explanation, entries []podeni.Entry) (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	switch {
	case e.Requests == 0 && o.Pod.Namespace == metav1.NamespaceSystem:
		list = append(list, excluded(o))
	case e.Requests == 0:
		add("no container requests %s, because the pod was created before a policy selected it, or admission did not run: delete the pod, so that its next one is admitted with the request", vpc.ResourcePodENI)
	}
	if e.Node == "" {
		add("the pod is on no node: a node needs a free %s, see `kubectl describe pod`", vpc.ResourcePodENI)
		return list
	}
	if why := withoutTrunk(o.CNINode, len(e.Branches)); why != "" {
		add("node %s %s", e.Node, why)
		return list
	}
	if why := refusedBy(o, d); len(e.Branches) == 0 && len(why) > 0 {
		return append(list, why...)
	}
	if len(e.Branches) == 0 {
		add("the controller has no branch for the pod%s", refusal(o))
		return list
	}
	return append(list, lacking(o, e, entries)...)
}

// unprotected is why a selected pod runs with the groups of its node.
func unprotected(o Objects, e Explanation) string {
	switch {
	case e.Mode == trunkline.GroupsOff:
		return "nothing enforces the groups, because " + e.EnforcedWhy + ": the pod has the groups of its node"
	case o.Pod.Namespace == metav1.NamespaceSystem:
		return excluded(o)
	}
	return "the pod was wired before a policy selected it, and runs with the groups of its node: delete the pod, so that its next one has a branch, or set pod-security-group-late-match to enforce, the default, so that its node enforces the groups, or to evict, with which an event of the pod says why it is not evicted"
}

// excluded is why a selected pod of a namespace without required branches has none.
func excluded(o Objects) string {
	return fmt.Sprintf("no container requests %s, and in %s a pod gets groups of its own only if it requests it itself: it runs with the groups of its node", vpc.ResourcePodENI, o.Pod.Namespace)
}

// refusedBy is why the controller gives the pod no branch, as the status of its policies says.
func refusedBy(o Objects, d securitygroup.Decision) (list []string) {
	for _, m := range d.Matches {
		i := slices.IndexFunc(o.Policies, func(p v1beta1.SecurityGroupPolicy) bool { return m.Selected && p.Name == m.Policy.Name })
		if i < 0 {
			continue
		}
		for _, r := range o.Policies[i].Status.Refused {
			if r.Name == o.Pod.Name {
				list = append(list, fmt.Sprintf("the controller refuses the groups of the pod (%s): %s: correct groupIds of a policy that selects it", r.Reason, r.Message))
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list) // several policies may say the same
}

// withoutTrunk is why a node cannot have branches; empty if it can. A pod that has a branch keeps it
// with an ENIConfig that is refused.
func withoutTrunk(n *v1alpha1.CNINode, branches int) string {
	switch {
	case n == nil:
		return "has no CNINode: its agent creates it if security groups for pods are on"
	case n.Status.TrunkInterface != nil:
		return ""
	case n.Status.Trunkline != nil && n.Status.Trunkline.Unreadable != "":
		return "has an invalid record in its CNINode: " + n.Status.Trunkline.Unreadable
	case n.Status.Trunkline != nil && branches == 0 && customRefusal(n.Status.Trunkline) != "":
		return "gets no branch from the controller: " + customRefusal(n.Status.Trunkline)
	case n.Status.Trunkline != nil && TrunkRefusal(n.Status.Trunkline) != "":
		return TrunkRefusal(n.Status.Trunkline)
	case n.Status.Trunkline == nil || n.Status.Trunkline.Trunk == nil:
		return "has no trunk: the controller creates it once a pod of the node requests a branch, if the instance type has branches and the account may create trunks"
	case n.Status.Trunkline.Trunk.Phase != v1alpha1.TrunkReady:
		return fmt.Sprintf("has a trunk that is not ready: %s", n.Status.Trunkline.Trunk.Phase)
	}
	return ""
}

// TrunkRefusal is why a node without a trunk gets none, by what EC2 answered the controller; empty if it
// may get one.
func TrunkRefusal(ledger *v1alpha1.BranchLedger) string {
	for _, b := range ledger.Backoffs {
		if ledger.Trunk == nil && b.Key == "trunk" {
			return fmt.Sprintf("has no trunk, because EC2 refuses the controller of Trunkline (security-groups-for-pods: own): %s: where AWS's controller runs, use managed", b.Message)
		}
	}
	return ""
}

// refusal is what the controller recorded about a pod without a branch.
func refusal(o Objects) string {
	ledger := o.CNINode.Status.Trunkline
	if ledger == nil {
		return ""
	}
	for _, r := range ledger.Refused {
		if r.PodUID == string(o.Pod.UID) {
			return fmt.Sprintf(": EC2 refused %s: %s", strings.Join(r.SecurityGroups, ", "), r.Message)
		}
	}
	for _, b := range ledger.Backoffs {
		if strings.HasSuffix(b.Key, string(o.Pod.UID)) {
			return fmt.Sprintf(": %s after %d tries: %s", b.Reason, b.Tries, b.Message)
		}
	}
	return ""
}

// lacking is what the branches of the pod lack.
func lacking(o Objects, e Explanation, entries []podeni.Entry) (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	for _, b := range e.Branches {
		name := b.ENI
		if name == "" {
			name = "the branch"
		}
		// A pod may use a branch that is binding: the record of its binding is written with the next change.
		if !slices.Contains([]string{string(v1alpha1.BranchBound), string(v1alpha1.BranchBinding), stateAssociated}, b.State) {
			add("%s is not bound yet: %s", name, b.State)
		}
		if b.State != stateAssociated && !slices.Equal(b.Groups, e.Groups) {
			add("%s carries the groups %s, and the policies give %s: the controller changes them", name, join(b.Groups), join(e.Groups))
		}
	}
	// AWS's controller has no record that names pods: then there is nothing to compare with.
	ledger := o.CNINode.Status.Trunkline
	records, err := readLedger(ledger)
	switch _, has := o.Pod.Annotations[vpc.AnnotationPodENI]; {
	case err != nil:
		add("the record in the status of CNINode %s is invalid: %v: correct it; until then the controller changes nothing of the node", o.CNINode.Name, err)
	case !has:
		add("the pod has no annotation %s: the controller writes it once a branch is bound", vpc.AnnotationPodENI)
	case entries == nil:
		add("the annotation %s cannot be read: %s", vpc.AnnotationPodENI, e.Annotation)
	case ledger != nil:
		if err := podeni.Verify(vpc.InstanceID(ledger.InstanceID), o.Pod.UID, entries, records); err != nil {
			add("the annotation %s is refused by the node: %v", vpc.AnnotationPodENI, err)
		}
	}
	return list
}

// readLedger is the branches of a ledger that annotations may name, and all that is wrong with it.
func readLedger(l *v1alpha1.BranchLedger) ([]podeni.Record, error) {
	if l == nil {
		return nil, nil
	}
	records, err := kube.BranchRecords(l)
	return records, errors.Join(append(l.Check(l.InstanceID), err)...)
}

func join(groups []string) string {
	if len(groups) == 0 {
		return "(none)"
	}
	return strings.Join(groups, ", ")
}
