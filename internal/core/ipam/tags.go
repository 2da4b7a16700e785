package ipam

import (
	"fmt"
	"strings"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// WhyUnmanaged is why Trunkline may not use an interface on or of this instance; empty if
// it may. It uses the primary one, and those on the default network card that are tagged
// with the instance's id, unless the tag no_manage is "true" or its type cannot have
// addresses of pods. AWS's CNI reads the same tags. The cluster's name does not count: pods
// that run must not lose their network when an operator corrects the setting.
func WhyUnmanaged(e ENI, tags map[string]string, instance vpc.InstanceID) string {
	switch {
	case e.Card != vpc.DefaultCard:
		return fmt.Sprintf("it is not on network card %d, and pods get addresses on that one only", vpc.DefaultCard)
	case tags[vpc.TagNoManage] == "true":
		return "its tag " + vpc.TagNoManage + " is true"
	case !carriesPods(e):
		return fmt.Sprintf("its type is %q", e.Type)
	case e.Primary || tags[vpc.TagInstanceID] == string(instance):
		return ""
	}
	return "another program made it: its tag " + vpc.TagInstanceID + " does not name this instance"
}

// carriesPods reports whether an interface of this type can have addresses of pods. An
// EFA is kept for the program that it was attached for, unless it is the primary
// interface, which is never detached.
func carriesPods(e ENI) bool {
	return e.Type == vpc.TypeInterface || e.Type == vpc.TypeEFA && e.Primary
}

// Provenance returns why an interface that has the node's tag, and is attached to no
// instance, was not made by this node's agent; empty if it was. Any principal that may
// tag can write a tag, so the id of the interface's creator counts as well: for the role of
// an instance, EC2 shows "AROA…:i-…", with its own id. EC2 may show none.
func Provenance(tags map[string]string, requester string, n cloud.Node) string {
	switch {
	case tags[vpc.TagManagedBy] != vpc.ManagedBy:
		return fmt.Sprintf("it has no tag %s=%s", vpc.TagManagedBy, vpc.ManagedBy)
	case tags[vpc.TagClusterName] != n.Cluster:
		return fmt.Sprintf("it was made for cluster %q", tags[vpc.TagClusterName])
	case requester != "" && !strings.HasSuffix(requester, ":"+string(n.Instance)):
		return requester + " made it, and not the role of this instance"
	}
	return ""
}

// SubnetAllowed reports whether the tags of a subnet allow interfaces for pods in it,
// as AWS's CNI reads them: kubernetes.io/role/cni "0" excludes it, another value opts
// it in, and without the tag only home, the subnet of the node's primary interface, is
// used. A subnet tagged for clusters serves only those.
func SubnetAllowed(tags map[string]string, home bool, cluster string) bool {
	role, tagged := tags[vpc.TagSubnetRole]
	if role == "0" || !home && !tagged {
		return false
	}
	bound, ours := false, false
	for key := range tags {
		if name, ok := strings.CutPrefix(key, vpc.TagSubnetOfPfx); ok {
			bound = true
			ours = ours || name == cluster
		}
	}
	return !bound || ours
}
