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

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// footprint is the state of pods in a node's kernel.
type footprint struct {
	Links []string     // host ends of pod links
	To    []netip.Addr // rules "to <pod> lookup main"
	From  []netip.Addr // rules "from <pod> lookup <table of its interface>"
	Route []netip.Addr // routes to pods in the main table
}

// inNetns runs a program in the node's network namespace, from outside the node.
func (n node) inNetns(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	full := append([]string{"netns", "exec", n.Namespace}, args...)
	out, err := exec.CommandContext(ctx, "ip", full...).Output()
	if err != nil {
		t.Fatalf("in %s: %s: %v", n.Name, strings.Join(args, " "), err)
	}
	return string(out)
}

func (n node) footprint(t testing.TB) footprint {
	t.Helper()
	var f footprint
	var links []struct {
		Name string `json:"ifname"`
	}
	decode(t, n.inNetns(t, "ip", "-j", "link"), &links)
	for _, link := range links {
		if strings.HasPrefix(link.Name, "eni") {
			f.Links = append(f.Links, link.Name)
		}
	}
	var rules []struct {
		Priority int    `json:"priority"`
		Src, Dst string `json:",omitempty"`
	}
	decode(t, n.inNetns(t, "ip", "-j", "rule"), &rules)
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
	decode(t, n.inNetns(t, "ip", "-j", "route", "show", "table", "main"), &routes)
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

func sorted(a []netip.Addr) []netip.Addr {
	slices.SortFunc(a, netip.Addr.Compare)
	return a
}

// sandboxes returns the named network namespaces inside the node: the container runtime
// makes one for each pod that is not host-network.
func (n node) sandboxes() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(n.PID), "root", "run", "netns"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// ledger reads the agent's addresses from its introspection socket, inside the node.
func (n node) ledger() (introspection.Ledger, error) {
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
