// Package vm runs Go tests and other programs on a real Debian kernel in a virtual machine, for
// what the kernel of this machine lacks, differs in, or must be spared: another version, link
// types, modules, a panic. QEMU emulates the processor (TCG), so no KVM is needed, and system
// calls take five to ten times as long.
//
// A test with the tag "vm" calls Run, which compiles the tests of another package as one static
// program and reports each of them as a subtest:
//
//	vm.Run(t, vm.Guest{
//		Package: "./internal/kernel/nfnetlink", Tags: "netns",
//		Machine: vm.Machine{Modules: vm.Nftables(), Programs: []string{"ip", "nft"}},
//	})
//
// The guest has the files that Machine names, the package's testdata, an initramfs without a
// disk, loopback and no network to outside. Its first process is test/vm/init. Tests that run
// only there carry the tag "vmguest". Host.Boot runs any other program.
//
// The kernel is Debian's package, unpacked in the lab's cache and never installed; QEMU is
// Debian's. One virtual machine runs at a time; it ends with its test, also after a crash.
package vm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Required is the variable that makes a missing QEMU or kernel fail tests: "required". Without
// it they are skipped.
const Required = "TRUNKLINE_VM"

// Guest is tests of one package.
type Guest struct {
	Machine
	Package string // by its path in this module, such as "./internal/kernel/nfnetlink"
	Tags    string // build tags, separated by commas
	Run     string // pattern of the tests to run; all if empty
	Skip    string // pattern of those not to run; none if empty
	// Args are further arguments of the test's program.
	Args []string
	// Timeout is the time limit of the tests, 5 minutes if 0, which is enough on a machine with
	// a tenth of its processors idle. The virtual machine has one more to boot.
	Timeout time.Duration
}

// Run runs tests in a virtual machine. Each is a subtest of t with the same name, result and
// output. t fails if one fails, if none ran, and if the machine does not end properly; then it
// logs the output that belongs to no test, and the kernel's log.
func Run(t *testing.T, g Guest) {
	t.Helper()
	h := New(t)
	var output bytes.Buffer
	log, err := h.test(t.Context(), g, &output)
	results, parseErr := readResults(t.Context(), &output)
	if parseErr != nil {
		t.Fatalf("read the guest's output: %v", errors.Join(parseErr, err))
	}
	failed := results.report(t)
	var exit *ExitError
	switch {
	case err == nil && results.ran == 0:
		t.Errorf("no test of %s ran in the guest: its pattern %q or its tags %q match none", g.Package, g.Run, g.Tags)
	case err != nil && (!failed || !errors.As(err, &exit)):
		t.Errorf("%s in the guest: %v", g.Package, err)
	}
	if t.Failed() {
		t.Logf("output of no test:\n%s\nwarnings of the guest's kernel:\n%s", results.outside(), log)
	}
}

// New is Open for a test: it skips the test where virtual machines are unavailable, or fails it
// if they are required.
func New(t testing.TB) *Host {
	t.Helper()
	h, err := Open(t.Context())
	required, _ := os.LookupEnv(Required)
	switch {
	case errors.Is(err, ErrUnavailable) && required != "required":
		t.Skip(strings.ReplaceAll(err.Error(), "\n", "; "))
	case err != nil:
		t.Fatal(err)
	}
	return h
}

// test boots a machine for the tests of a guest.
func (h *Host) test(ctx context.Context, g Guest, output *bytes.Buffer) (log string, err error) {
	const program = "/test"
	binary, err := h.Build(ctx, "test", "-c", "-tags="+g.Tags, g.Package)
	if err != nil {
		return "", err
	}
	limit := orDefault(g.Timeout, 5*time.Minute)
	m := g.Machine
	m.Timeout = orDefault(m.Timeout, limit+time.Minute)
	argv := []string{program, "-test.v=test2json", "-test.timeout=" + limit.String()}
	if g.Run != "" {
		argv = append(argv, "-test.run="+g.Run)
	}
	if g.Skip != "" {
		argv = append(argv, "-test.skip="+g.Skip)
	}
	dir := path.Join("/src", filepath.ToSlash(g.Package))
	return h.boot(ctx, m, dir, append(argv, g.Args...), output, func(a *archive) error {
		a.add(program, entry{mode: unix.S_IFREG | 0o755, content: binary})
		testdata := filepath.Join(h.source, g.Package, "testdata")
		if _, err := os.Stat(testdata); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return a.tree(path.Join(dir, "testdata"), testdata)
	})
}

// Nftables are the modules of nftables as the product and its tests use it.
func Nftables() []string {
	return []string{
		"nf_tables", "nft_chain_nat", "nft_compat", "nft_ct", "nft_fib_inet", "nft_limit", "nft_log", "nft_masq",
		"nft_nat", "nft_numgen", "nft_objref", "nft_redir", "nft_reject_inet", "nft_socket", "nf_conntrack_netlink", "nf_log_syslog", "veth",
	}
}
