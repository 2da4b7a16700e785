package awsnode

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// twoInterfaces has two secondary addresses on the first and a /28 on the second.
func twoInterfaces() []Interface {
	return []Interface{
		{ID: "eni-1", Device: 0, Secondary: []netip.Addr{addr("10.0.0.5"), addr("10.0.0.6")}},
		{ID: "eni-2", Device: 1, Prefixes: []netip.Prefix{prefix("10.0.0.32/28")}},
	}
}

func sandbox(name string) allocation {
	return allocation{Network: "aws-cni", Container: "c-" + name, IfName: "eth0", Metadata: metadata{Namespace: "default", Pod: name, Interfaces: 1}}
}

func open(t *testing.T, path string, links ...string) *pool {
	t.Helper()
	p, err := openPool(path, twoInterfaces(), links)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEachSandboxHasAnAddressOfItsOwnUntilNoneIsFree(t *testing.T) {
	p := open(t, filepath.Join(t.TempDir(), "ipam.json"))
	seen, by := map[netip.Addr]bool{}, map[string]int{}
	for i := range 18 {
		a, on, err := p.assign(sandbox(string(rune('a' + i))))
		if err != nil || seen[a] {
			t.Fatalf("sandbox %d: %s, %v", i, a, err)
		}
		seen[a] = true
		by[on.table()]++
	}
	if by["main"] != 2 || by["2"] != 16 {
		t.Errorf("addresses by route table: %v", by)
	}
	if _, _, err := p.assign(sandbox("z")); !errors.Is(err, errEmpty) {
		t.Errorf("without a free address: %v", err)
	}
	first, _, err := p.assign(sandbox("a"))
	if err != nil || !seen[first] {
		t.Errorf("the same sandbox again: %s, %v", first, err)
	}
}

// A restarted daemon knows pods that have a link, and no others.
func TestTheCheckpointHasWhatIsInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ipam.json")
	p := open(t, path)
	var addresses []netip.Addr
	for _, name := range []string{"runs", "ended", "removed"} {
		a, _, err := p.assign(sandbox(name))
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, a)
	}
	if gone, _, known, err := p.release("aws-cni", "c-removed", "eth0"); err != nil || !known || gone.IPv4 != addresses[2] {
		t.Errorf("released %+v, %v, %v", gone, known, err)
	}
	again := open(t, path, "eth0", Pod{Namespace: "default", Name: "runs"}.Link())
	if len(again.all) != 1 || again.all[0].IPv4 != addresses[0] || again.all[0].Metadata.Pod != "runs" {
		t.Errorf("after a restart: %+v", again.all)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(raw, &file); err != nil || file["version"] != "vpc-cni-ipam/1" {
		t.Errorf("%v: %s", err, raw)
	}
	entry := file["allocations"].([]any)[0].(map[string]any)
	for _, key := range []string{"networkName", "containerID", "ifName", "ipv4", "allocationTimestamp", "metadata"} {
		if _, ok := entry[key]; !ok {
			t.Errorf("the checkpoint has no %s: %s", key, raw)
		}
	}
}

func TestAddressesOfAPrefixAreAllForPods(t *testing.T) {
	all := twoInterfaces()[1].addresses()
	if len(all) != 16 || !slices.Contains(all, addr("10.0.0.32")) || !slices.Contains(all, addr("10.0.0.47")) {
		t.Errorf("%v", all)
	}
}
