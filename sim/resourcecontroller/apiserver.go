package resourcecontroller

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	cniNodePath  = "/apis/vpcresources.k8s.aws/v1alpha1/cninodes"
	policyPath   = "/apis/vpcresources.k8s.aws/v1beta1/securitygrouppolicies"
	accountsPath = "/api/v1/serviceaccounts"
)

// list and object are what is read of any kind.
type list struct {
	Items []object `json:"items"`
}

type object struct {
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		UID         string            `json:"uid"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		ProviderID string         `json:"providerID"` // of a node
		Features   []namedFeature `json:"features"`   // of a CNINode

		NodeName           string      `json:"nodeName"` // of a pod
		ServiceAccountName string      `json:"serviceAccountName"`
		HostNetwork        bool        `json:"hostNetwork"`
		Containers         []container `json:"containers"`

		PodSelector            *metav1.LabelSelector `json:"podSelector"` // of a policy
		ServiceAccountSelector *metav1.LabelSelector `json:"serviceAccountSelector"`
		SecurityGroups         struct {
			Groups []string `json:"groupIds"`
		} `json:"securityGroups"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

type namedFeature struct {
	Name string `json:"name"`
}

type container struct {
	Resources struct {
		Requests map[string]any `json:"requests"`
	} `json:"resources"`
}

// instanceID is that of a node: aws:///zone/i-….
func (o object) instanceID() string { return path.Base(o.Spec.ProviderID) }

func (o object) requestsBranch() bool {
	return !o.Spec.HostNetwork && slices.ContainsFunc(o.Spec.Containers, func(c container) bool { return c.Resources.Requests[resource] != nil })
}

// groupsOf are the groups of the policies of a pod's namespace that match it, each once. A policy
// without a selector or without groups, or with one that cannot be read, matches none; one with both
// selectors matches if both do. Source: filterPodSecurityGroups in pkg/utils/helper.go.
func (c *Controller) groupsOf(ctx context.Context, pod object) (groups []string, err error) {
	var policies, accounts list
	if err := c.api.get(ctx, policyPath, &policies); err != nil {
		return nil, err
	}
	if err := c.api.get(ctx, accountsPath, &accounts); err != nil {
		return nil, err
	}
	var account map[string]string
	for _, a := range accounts.Items {
		if a.Metadata.Namespace == pod.Metadata.Namespace && a.Metadata.Name == pod.Spec.ServiceAccountName {
			account = a.Metadata.Labels
		}
	}
	for _, p := range policies.Items {
		if p.Metadata.Namespace != pod.Metadata.Namespace || !p.selects(pod, account) {
			continue
		}
		for _, g := range p.Spec.SecurityGroups.Groups {
			if !slices.Contains(groups, g) {
				groups = append(groups, g)
			}
		}
	}
	return groups, nil
}

// selects reports whether a policy selects a pod, by the labels of its account too.
func (o object) selects(pod object, account map[string]string) bool {
	byPod, byAccount := o.Spec.PodSelector, o.Spec.ServiceAccountSelector
	if byPod == nil && byAccount == nil {
		return false
	}
	return (byPod == nil || matches(byPod, pod.Metadata.Labels)) && (byAccount == nil || matches(byAccount, account))
}

func matches(s *metav1.LabelSelector, set map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(labels.Set(set))
}

// details are what the annotation has of a branch, in its order. Source: ENIDetails in
// pkg/provider/branch/trunk/trunk.go.
type details struct {
	ID          string `json:"eniId"`
	MAC         string `json:"ifAddress"`
	IPv4        string `json:"privateIp"`
	IPv6        string `json:"ipv6Addr"`
	VLAN        int    `json:"vlanId"`
	Subnet      string `json:"subnetCidr"`
	SubnetV6    string `json:"subnetV6Cidr"`
	Association string `json:"associationID"`
}

func annotation(d details) (string, error) {
	text, err := json.Marshal([]details{d})
	return string(text), err
}

// apiServer reads and writes objects as JSON.
type apiServer struct{ url string }

func (a apiServer) get(ctx context.Context, at string, into any) error {
	body, err := a.do(ctx, http.MethodGet, at, nil)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", at, err)
	}
	return nil
}

// send creates an object by POST, or changes one by a merge patch.
func (a apiServer) send(ctx context.Context, method, at string, object any) error {
	body, err := json.Marshal(object)
	if err == nil {
		_, err = a.do(ctx, method, at, body)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, at, err)
	}
	return nil
}

func (a apiServer) do(ctx context.Context, method, at string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, a.url+at, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	reply, err := (&http.Client{Timeout: 10 * time.Second}).Do(r)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("status %d: %s", reply.StatusCode, text)
	}
	return text, err
}
