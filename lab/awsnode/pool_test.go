package awsnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	p, _, err := openPool(path, twoInterfaces(), links)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A checkpoint that another program wrote, such as Trunkline when it leaves a node, decides which
// addresses new pods get.
func TestARestartTakesOverWhatAWSsDaemonWould(t *testing.T) {
	entry := func(container, address, namespace, name string) string {
		return fmt.Sprintf(`{"networkName":"aws-cni","containerID":%q,"ifName":"eth0","ipv4":%q,"metadata":{"k8sPodNamespace":%q,"k8sPodName":%q}}`, container, address, namespace, name)
	}
	runs := entry("c-1", "10.0.0.5", "default", "runs")
	for name, tc := range map[string]struct {
		entries     []string
		want, stale string // containers
		fails       string
	}{
		"a pod with a link":                      {[]string{runs}, "[c-1]", "[]", ""},
		"a pod without a link":                   {[]string{entry("c-2", "10.0.0.6", "default", "ended")}, "[]", "[c-2]", ""},
		"no names, which earlier releases wrote": {[]string{entry("c-3", "10.0.0.6", "", "")}, "[c-3]", "[]", ""},
		"an address of a prefix":                 {[]string{entry("c-4", "10.0.0.40", "default", "runs")}, "[c-4]", "[]", ""},
		"an address of no interface":             {[]string{entry("c-5", "10.0.9.9", "default", "runs")}, "[]", "[]", ""},
		"an address twice":                       {[]string{runs, entry("c-6", "10.0.0.5", "", "")}, "", "", "in use already"},
		"an address twice, once stale":           {[]string{runs, entry("c-7", "10.0.0.5", "default", "ended")}, "[c-1]", "[c-7]", ""},
	} {
		path := filepath.Join(t.TempDir(), "ipam.json")
		text := `{"version":"vpc-cni-ipam/1","allocations":[` + strings.Join(tc.entries, ",") + `]}`
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p, stale, err := openPool(path, twoInterfaces(), []string{"eth0", Pod{Namespace: "default", Name: "runs"}.Link()})
		if tc.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: %v, want %q", name, err, tc.fails)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		of := func(all []allocation) string {
			containers := []string{}
			for _, a := range all {
				containers = append(containers, a.Container)
			}
			return fmt.Sprint(containers)
		}
		if of(p.all) != tc.want || of(stale) != tc.stale {
			t.Errorf("%s: %s, stale %s; want %s, stale %s", name, of(p.all), of(stale), tc.want, tc.stale)
		}
	}
}

func TestANewNodeHasNoCheckpointBeforeItsFirstPod(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ipam.json")
	p := open(t, path)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	if _, _, err := p.assign(sandbox("a")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
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

// Each address is listed; those in use have their pod.
func TestIntrospectionNamesThePodsOfAddressesInUse(t *testing.T) {
	p := open(t, filepath.Join(t.TempDir(), "ipam.json"))
	for _, name := range []string{"a", "b"} {
		if _, _, err := p.assign(sandbox(name)); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := json.Marshal(p.infos())
	if err != nil {
		t.Fatal(err)
	}
	const used = `{"Address":"%s","IPAMMetadata":{"k8sPodNamespace":"default","k8sPodName":"%s","interfacesCount":1}}`
	want := `{"0":{"TotalIPs":18,"AssignedIPs":2,"ENIs":{` +
		`"eni-1":{"ID":"eni-1","IsPrimary":true,"DeviceNumber":0,"AvailableIPv4Cidrs":{` +
		`"10.0.0.5/32":{"IPAddresses":{"10.0.0.5":` + fmt.Sprintf(used, "10.0.0.5", "a") + `},"IsPrefix":false},` +
		`"10.0.0.6/32":{"IPAddresses":{},"IsPrefix":false}}},` +
		`"eni-2":{"ID":"eni-2","IsPrimary":false,"DeviceNumber":1,"AvailableIPv4Cidrs":{` +
		`"10.0.0.32/28":{"IPAddresses":{"10.0.0.32":` + fmt.Sprintf(used, "10.0.0.32", "b") + `},"IsPrefix":true}}}}}}`
	if string(raw) != want {
		t.Errorf("%s\nwant\n%s", raw, want)
	}
}

func TestAddressesOfAPrefixAreAllForPods(t *testing.T) {
	all := twoInterfaces()[1].addresses()
	if len(all) != 16 || !slices.Contains(all, addr("10.0.0.32")) || !slices.Contains(all, addr("10.0.0.47")) {
		t.Errorf("%v", all)
	}
}
