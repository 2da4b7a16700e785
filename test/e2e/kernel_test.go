//go:build lab

package e2e

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/netns"
	"github.com/trunkline/trunkline/lab/daemon"
)

// footprint is the state of pods in a node's kernel.
type footprint struct {
	Links []string     // host ends of pod links
	To    []netip.Addr // rules "to <pod> lookup main"
	From  []netip.Addr // rules "from <pod> lookup <table of its interface>"
	Route []netip.Addr // routes to pods in the main table
	Netns []string     // network namespaces of sandboxes
}

// inNode runs a program in a node's network namespace, from outside the node.
func (l lab) inNode(t testing.TB, node string, args ...string) string {
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

func (l lab) footprint(t testing.TB, node string) footprint {
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
		case hostnet.RuleToPod:
			f.To = append(f.To, netip.MustParseAddr(r.Dst))
		case hostnet.RuleFromPod:
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

func decode(t testing.TB, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("decode %.80q: %v", text, err)
	}
}

// podsOf returns the addresses of the running pods on a node that are not
// host-network pods.
func (l lab) podsOf(t testing.TB, kubeName string) []netip.Addr {
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

// sandboxes returns the named network namespaces of a node: the container runtime
// makes one for each pod that is not host-network.
func sandboxes(n daemon.NodeStatus) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(n.PID), "root", "run", "netns"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// ledger reads the agent's addresses from its introspection socket, inside the node.
func (l lab) ledger(t testing.TB, n daemon.NodeStatus) (introspection.Ledger, error) {
	t.Helper()
	var b introspection.Ledger
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = netns.DoAt(netns.Path(n.Namespace), func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
	resp, err := client.Get("http://" + cli.DefaultIntrospection + introspection.LedgerPath)
	if err != nil {
		return b, err
	}
	defer resp.Body.Close()
	return b, json.NewDecoder(resp.Body).Decode(&b)
}

// accountMatchesLedgers checks that every interface of Trunkline in EC2 belongs to a
// running node and has exactly the addresses in the ledger of that node's agent.
func (l lab) accountMatchesLedgers(t testing.TB, nodes []daemon.NodeStatus) error {
	t.Helper()
	known := map[string][]netip.Addr{}
	for _, n := range nodes {
		b, err := l.ledger(t, n)
		if err != nil {
			return notYet("the agent of %s: %v", n.Name, err)
		}
		for _, eni := range b.ENIs {
			addrs := []netip.Addr{eni.Primary}
			for _, a := range eni.Addresses {
				addrs = append(addrs, a.Address)
			}
			known[eni.ID] = sorted(addrs)
		}
	}
	for _, eni := range l.interfaces(t) {
		id := aws.ToString(eni.NetworkInterfaceId)
		addrs, ok := known[id]
		mark := slices.ContainsFunc(eni.TagSet, func(tag types.Tag) bool { return aws.ToString(tag.Key) == vpc.TagManagedBy })
		if !ok && mark {
			return notYet("%s is %s and not in the ledger of any running node's agent", id, eni.Status)
		}
		delete(known, id)
		var held []netip.Addr
		for _, a := range eni.PrivateIpAddresses {
			held = append(held, netip.MustParseAddr(aws.ToString(a.PrivateIpAddress)))
		}
		if ok && !slices.Equal(sorted(held), addrs) {
			return notYet("%s has %v in EC2 and %v in its agent's ledger", id, held, addrs)
		}
	}
	if len(known) > 0 {
		return notYet("interfaces in the agents' ledgers and not in EC2: %v", known)
	}
	return nil
}

// stateAgrees checks that the kernel of every node has exactly its pods' links,
// rules, routes and namespaces, that every pod's address is on an interface in EC2,
// and that EC2 matches the agents' ledgers.
func (l lab) stateAgrees(t testing.TB) error {
	t.Helper()
	held := l.holders(t)
	var running []daemon.NodeStatus
	for _, n := range l.status(t).Nodes {
		if n.State != "running" {
			continue
		}
		running = append(running, n)
		pods := l.podsOf(t, n.KubeName)
		f := l.footprint(t, n.Name)
		var err error
		if f.Netns, err = sandboxes(n); err != nil {
			return notYet("namespaces of %s: %v", n.Name, err)
		}
		switch {
		case len(f.Netns) != len(pods):
			return notYet("%s has %d pods and %d namespaces %v", n.Name, len(pods), len(f.Netns), f.Netns)
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
				return notYet("pod address %s on %s is not assigned in EC2", a, n.Name)
			}
		}
	}
	return l.accountMatchesLedgers(t, running)
}
