//go:build lab

package e2e

import (
	"context"
	"encoding/json"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// footprint is what pods left in the kernel of a node.
type footprint struct {
	Links []string     // host ends of pods
	To    []netip.Addr // rules "to <pod> lookup main"
	From  []netip.Addr // rules "from <pod> lookup <table of its interface>"
	Route []netip.Addr // routes to pods in the main table
	Netns int          // network namespaces of sandboxes
}

// inNode runs a program in a node's network namespace, from outside the node.
func (l lab) inNode(t *testing.T, node string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	full := append([]string{"netns", "exec", "tl-" + l.name + "-" + node}, args...)
	out, err := exec.CommandContext(ctx, "ip", full...).Output()
	if err != nil {
		t.Fatalf("in %s: %s: %v", node, strings.Join(args, " "), err)
	}
	return string(out)
}

func (l lab) footprint(t *testing.T, node string) footprint {
	t.Helper()
	var f footprint
	var links []struct {
		Name string `json:"ifname"`
	}
	decode(t, l.inNode(t, node, "ip", "-j", "link"), &links)
	for _, link := range links {
		if strings.HasPrefix(link.Name, "eni") {
			f.Links = append(f.Links, link.Name)
		}
	}
	var rules []struct {
		Priority int    `json:"priority"`
		Src, Dst string `json:",omitempty"`
	}
	decode(t, l.inNode(t, node, "ip", "-j", "rule"), &rules)
	for _, r := range rules {
		switch r.Priority {
		case 512:
			f.To = append(f.To, netip.MustParseAddr(r.Dst))
		case 1536:
			f.From = append(f.From, netip.MustParseAddr(r.Src))
		}
	}
	var routes []struct {
		Dst, Dev string
	}
	decode(t, l.inNode(t, node, "ip", "-j", "route", "show", "table", "main"), &routes)
	for _, r := range routes {
		if a, err := netip.ParseAddr(r.Dst); err == nil && strings.HasPrefix(r.Dev, "eni") {
			f.Route = append(f.Route, a)
		}
	}
	return f
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("decode %.80q: %v", text, err)
	}
}

// podsOf are the addresses of the pods on a node that have a network of their
// own and still run.
func (l lab) podsOf(t *testing.T, kubeName string) []netip.Addr {
	t.Helper()
	var pods corev1.PodList
	l.get(t, &pods, "pods", "-A", "--field-selector", "spec.nodeName="+kubeName)
	var out []netip.Addr
	for _, p := range pods.Items {
		if p.Spec.HostNetwork || p.Status.PodIP == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		out = append(out, netip.MustParseAddr(p.Status.PodIP))
	}
	return sorted(out)
}

func sorted(a []netip.Addr) []netip.Addr {
	slices.SortFunc(a, netip.Addr.Compare)
	return a
}

// kernelHoldsJust says whether the kernel of every node holds its pods' links,
// rules and routes and no others, and EC2 gave every pod's address to an
// interface of that pod's node.
func (l lab) kernelHoldsJust(t *testing.T) error {
	t.Helper()
	held := l.holders(t)
	for _, n := range l.status(t).Nodes {
		if n.State != "running" {
			continue
		}
		pods := l.podsOf(t, n.KubeName)
		f := l.footprint(t, n.Name)
		switch {
		case len(f.Links) != len(pods):
			return notYet("%s has %d pods and %d pod links %v", n.Name, len(pods), len(f.Links), f.Links)
		case !slices.Equal(sorted(f.Route), pods):
			return notYet("%s has pods %v and routes %v", n.Name, pods, f.Route)
		case !slices.Equal(sorted(f.To), pods):
			return notYet("%s has pods %v and rules to %v", n.Name, pods, f.To)
		}
		for _, a := range f.From {
			if !slices.Contains(pods, a) {
				return notYet("%s has a rule from %s and no such pod", n.Name, a)
			}
		}
		for _, a := range pods {
			if held[a] == "" {
				return notYet("pod address %s on %s is not EC2's", a, n.Name)
			}
		}
	}
	return nil
}
