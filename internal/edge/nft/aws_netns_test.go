//go:build netns

package nft

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/test/testns"
)

// run runs a program in a namespace.
func run(t *testing.T, ns *testns.NS, argv ...string) string {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"netns", "exec", ns.Name}, argv...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", argv, err, out)
	}
	return string(out)
}

// asAWSsDaemon makes the rules of AWS's daemon 1.23.1, with iptables and nft as it uses them.
// Source: aws/amazon-vpc-cni-k8s, pkg/networkutils: network.go (buildIptablesSNATRules),
// iptables_connmark.go and nftables_connmark.go.
func asAWSsDaemon(t *testing.T, ns *testns.NS) {
	t.Helper()
	for _, rule := range iptablesOfAWS() {
		run(t, ns, append([]string{"iptables-nft", "-t"}, rule...)...)
	}
	nft(t, ns, `table ip aws-cni {
		chain snat-mark {
			counter ip daddr 10.0.0.0/16 return
			counter ct mark set ct mark | 0x80
		}
		chain nat-prerouting {
			type nat hook prerouting priority -90; policy accept;
			fib daddr type local return
			iifname "eni*" counter jump snat-mark
			ct mark & 0x80 == 0x0 counter meta mark set meta mark & 0xffffff7f
			ct mark & 0x80 == 0x80 counter meta mark set meta mark | 0x80
		}
	}`)
}

// iptablesOfAWS are the rules of AWS's daemon in iptables.
func iptablesOfAWS() [][]string {
	return [][]string{
		{"nat", "-N", "AWS-SNAT-CHAIN-0"},
		{"nat", "-A", "POSTROUTING", "-m", "comment", "--comment", "AWS SNAT CHAIN", "-j", "AWS-SNAT-CHAIN-0"},
		{"nat", "-I", "AWS-SNAT-CHAIN-0", "1", "-d", "10.0.0.0/16", "-m", "comment", "--comment", "AWS SNAT CHAIN", "-j", "RETURN"},
		{"nat", "-A", "AWS-SNAT-CHAIN-0", "!", "-o", "vlan+", "-m", "comment", "--comment", "AWS, SNAT", "-m", "addrtype", "!", "--dst-type", "LOCAL", "-j", "SNAT", "--to-source", "10.0.0.5", "--random-fully"},
		{"mangle", "-A", "PREROUTING", "-m", "comment", "--comment", "AWS, primary ENI", "-i", "eth0", "-m", "addrtype", "--dst-type", "LOCAL", "--limit-iface-in", "-j", "CONNMARK", "--set-mark", "0x80/0x80"},
		{"mangle", "-A", "PREROUTING", "-m", "comment", "--comment", "AWS, primary ENI", "-i", "eni+", "-j", "CONNMARK", "--restore-mark", "--mask", "0x80"},
		{"mangle", "-A", "PREROUTING", "-m", "comment", "--comment", "AWS, primary ENI", "-i", "vlan+", "-j", "CONNMARK", "--restore-mark", "--mask", "0x80"},
		// Of a daemon before 1.22, or with iptables-legacy.
		{"nat", "-N", "AWS-CONNMARK-CHAIN-0"},
		{"nat", "-A", "PREROUTING", "-i", "eni+", "-m", "comment", "--comment", "AWS, outbound connections", "-j", "AWS-CONNMARK-CHAIN-0"},
		{"nat", "-I", "AWS-CONNMARK-CHAIN-0", "1", "-d", "10.0.0.0/16", "-m", "comment", "--comment", "AWS CONNMARK CHAIN", "-j", "RETURN"},
		{"nat", "-A", "PREROUTING", "-m", "comment", "--comment", "AWS, CONNMARK", "-j", "CONNMARK", "--restore-mark", "--mask", "0x80"},
		{"nat", "-A", "AWS-CONNMARK-CHAIN-0", "-m", "comment", "--comment", "AWS, CONNMARK", "-j", "CONNMARK", "--set-xmark", "0x80/0x80"},
	}
}

// iptablesOfOthers are rules of kube-proxy and of an operator, which stay.
func iptablesOfOthers() [][]string {
	return [][]string{
		{"nat", "-N", "KUBE-SERVICES"},
		{"nat", "-A", "PREROUTING", "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES"},
		{"nat", "-A", "KUBE-SERVICES", "-d", "172.20.0.1/32", "-p", "tcp", "-m", "tcp", "--dport", "443", "-j", "DNAT", "--to-destination", "10.0.0.9:443"},
		{"nat", "-A", "POSTROUTING", "-s", "192.168.0.0/16", "-m", "comment", "--comment", "AWS VPN", "-j", "MASQUERADE"},
		{"mangle", "-A", "PREROUTING", "-i", "eth0", "-j", "MARK", "--set-xmark", "0x1/0x1"},
	}
}

// asOthers makes them.
func asOthers(t *testing.T, ns *testns.NS) {
	t.Helper()
	for _, rule := range iptablesOfOthers() {
		run(t, ns, append([]string{"iptables-nft", "-t"}, rule...)...)
	}
}

func rulesOf(t *testing.T, ns *testns.NS) (list []string) {
	t.Helper()
	for _, table := range []string{"nat", "mangle"} {
		for line := range strings.Lines(run(t, ns, "iptables-nft", "-t", table, "-S")) {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

func TestRulesOfAWSsDaemonAreRemovedAndThoseOfOthersStay(t *testing.T) {
	f, ns := open(t)
	if removed, err := f.RemoveAWS(t.Context()); err != nil || len(removed) > 0 {
		t.Errorf("without rules: %q, %v", removed, err)
	}
	asOthers(t, ns)
	others := rulesOf(t, ns)
	asAWSsDaemon(t, ns)
	if with := len(rulesOf(t, ns)); with < len(others)+12 {
		t.Fatalf("%d rules and chains, %d of others: AWS's are missing", with, len(others))
	}
	removed, err := f.RemoveAWS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := rulesOf(t, ns); !slices.Equal(got, others) {
		t.Errorf("left:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(others, "\n"))
	}
	if tables := nft(t, ns, "list tables"); strings.Contains(tables, "aws-cni") {
		t.Error(tables)
	}
	if !slices.Contains(removed, "chain AWS-SNAT-CHAIN-0 in table ip nat") || !slices.Contains(removed, "table ip aws-cni") || len(removed) != 9 {
		t.Errorf("removed %d: %q", len(removed), removed)
	}
	if again, err := f.RemoveAWS(t.Context()); err != nil || len(again) > 0 {
		t.Errorf("again: %q, %v", again, err)
	}
}

// The command is that of docs/migrate.md.
const removeLegacy = `iptables-legacy-save | grep -v -e AWS-SNAT-CHAIN -e AWS-CONNMARK-CHAIN -e 'comment "AWS, ' | iptables-legacy-restore`

// legacyOf is what iptables-legacy-save prints of a table with its counters, without the time.
func legacyOf(t *testing.T, ns *testns.NS, table string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(run(t, ns, "iptables-legacy-save", "-c", "-t", table)) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// legacyOthers makes rules of others in iptables-legacy: with counters, without a target, with two
// rules that lead to one chain. It skips the test where the kernel has no iptables-legacy.
func legacyOthers(t *testing.T, ns *testns.NS) {
	t.Helper()
	if out, err := exec.Command("ip", "netns", "exec", ns.Name, "iptables-legacy", "-t", "nat", "-N", "KUBE-POSTROUTING").CombinedOutput(); err != nil {
		t.Skipf("this kernel has no iptables-legacy: %v: %s", err, out)
	}
	for i, rule := range append(iptablesOfOthers(),
		[]string{"nat", "-A", "KUBE-SERVICES", "-m", "comment", "--comment", "counted"},
		[]string{"nat", "-N", "KUBE-MARK-MASQ"},
		[]string{"nat", "-A", "KUBE-SERVICES", "-s", "10.1.0.0/16", "-g", "KUBE-MARK-MASQ"},
		[]string{"nat", "-A", "KUBE-MARK-MASQ", "-j", "MARK", "--set-xmark", "0x4000/0x4000"},
		[]string{"nat", "-A", "POSTROUTING", "-j", "KUBE-POSTROUTING"},
		[]string{"nat", "-A", "KUBE-POSTROUTING", "-m", "mark", "!", "--mark", "0x4000/0x4000", "-j", "RETURN"},
		[]string{"mangle", "-A", "FORWARD", "-p", "tcp", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP"},
		[]string{"mangle", "-P", "FORWARD", "DROP"},
	) {
		argv := append([]string{"iptables-legacy", "-t"}, rule...)
		if rule[1] == "-A" {
			argv = append(argv, "-c", strconv.Itoa(i+3), strconv.Itoa((i+3)*100))
		}
		run(t, ns, argv...)
	}
}

// legacyAWS makes the rules of AWS's daemon in iptables-legacy, beginning and ending chains of
// others too.
func legacyAWS(t *testing.T, ns *testns.NS) {
	t.Helper()
	for _, rule := range append(iptablesOfAWS(),
		[]string{"nat", "-I", "KUBE-SERVICES", "1", "-m", "comment", "--comment", "AWS, CONNMARK", "-j", "RETURN"},
		[]string{"nat", "-A", "KUBE-POSTROUTING", "-j", "AWS-SNAT-CHAIN-0"},
		[]string{"nat", "-I", "PREROUTING", "1", "-m", "comment", "--comment", "AWS, CONNMARK", "-j", "KUBE-SERVICES"},
		[]string{"nat", "-A", "AWS-CONNMARK-CHAIN-0", "-j", "KUBE-SERVICES"},
	) {
		run(t, ns, append([]string{"iptables-legacy", "-t"}, rule...)...)
	}
}

func TestRulesOfAWSsDaemonInIptablesLegacyAreRemovedAndThoseOfOthersStay(t *testing.T) {
	f, ns := open(t)
	legacyOthers(t, ns)
	tables := []string{"nat", "mangle"}
	others := map[string][]string{}
	for _, table := range tables {
		others[table] = legacyOf(t, ns, table)
	}
	legacyAWS(t, ns)
	removed, err := f.RemoveAWS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("removed:\n%s", strings.Join(removed, "\n"))
	for _, table := range tables {
		if got := legacyOf(t, ns, table); !slices.Equal(got, others[table]) {
			t.Errorf("left:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(others[table], "\n"))
		}
	}
	for _, want := range []string{"chain AWS-SNAT-CHAIN-0 in table nat of iptables-legacy", `rule "AWS, primary ENI" of chain PREROUTING in table mangle of iptables-legacy`} {
		if !slices.Contains(removed, want) {
			t.Errorf("%q is not in %q", want, removed)
		}
	}
	if again, err := f.RemoveAWS(t.Context()); err != nil || len(again) > 0 {
		t.Errorf("again: %q, %v", again, err)
	}
	if found, why, err := f.LegacyAWS(); len(found) > 0 || why != nil || err != nil {
		t.Errorf("found %q, %v, %v", found, why, err)
	}
	// The kernel's own check of what it has: iptables reads, changes and writes it.
	run(t, ns, "iptables-legacy", "-t", "nat", "-A", "KUBE-SERVICES", "-j", "KUBE-MARK-MASQ")
	run(t, ns, "iptables-legacy", "-t", "nat", "-D", "KUBE-SERVICES", "-j", "KUBE-MARK-MASQ")
	if got := legacyOf(t, ns, "nat"); !slices.Equal(got, others["nat"]) {
		t.Errorf("after a change of others:\n%s", strings.Join(got, "\n"))
	}
}

func TestChainsOfAWSsDaemonInIptablesLegacyAreFound(t *testing.T) {
	f, ns := open(t)
	found := func() (list []string, why error) {
		t.Helper()
		list, why, err := f.LegacyAWS()
		if err != nil {
			t.Fatal(err)
		}
		return list, why
	}
	names := func() string { return run(t, ns, "cat", "/proc/net/ip_tables_names") }
	if got, why := found(); len(got) > 0 || why != nil {
		t.Errorf("without iptables-legacy: %q, %v", got, why)
	}
	if out, err := exec.Command("ip", "netns", "exec", ns.Name, "iptables-legacy", "-t", "nat", "-N", "KUBE-SERVICES").CombinedOutput(); err != nil {
		t.Skipf("this kernel has no iptables-legacy: %v: %s", err, out)
	}
	if got, why := found(); len(got) > 0 || why != nil || names() != "nat\n" {
		t.Errorf("without chains of AWS's: %q, %v; tables %q, want nat alone: a question about another makes it", got, why, names())
	}
	for _, rule := range iptablesOfAWS() {
		run(t, ns, append([]string{"iptables-legacy", "-t"}, rule...)...)
	}
	want := []string{"AWS-CONNMARK-CHAIN-0 in table nat", "AWS-SNAT-CHAIN-0 in table nat"}
	if got, why := found(); !slices.Equal(got, want) || why != nil {
		t.Errorf("found %q, %v, want %q", got, why, want)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel() // as if another program held the lock
	before := legacyOf(t, ns, "nat")
	held, err := os.Open("/run/xtables.lock")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if removed, err := f.RemoveAWS(cancelled); err == nil || len(removed) > 0 {
		t.Errorf("while the lock is held: %q, %v", removed, err)
	}
	held.Close()
	if got, why := found(); !slices.Equal(got, want) || why == nil || !slices.Equal(legacyOf(t, ns, "nat"), before) {
		t.Errorf("after a removal that failed: %q, %v", got, why)
	}
	run(t, ns, "sh", "-c", removeLegacy)
	if got, why := found(); len(got) > 0 || why != nil {
		t.Errorf("after the command of docs/migrate.md: %q, %v", got, why)
	}
	if rest := run(t, ns, "iptables-legacy-save"); strings.Contains(rest, "AWS") || !strings.Contains(rest, ":KUBE-SERVICES") {
		t.Errorf("after the command of docs/migrate.md:\n%s", rest)
	}
}
