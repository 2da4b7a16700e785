package preflight

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// Targets are the paths and the port that Probe checks.
type Targets struct {
	CacheDir, StateRoot string
	Port                int // on 127.0.0.1; 0 is not checked
}

// Probe gathers the facts about this machine. It tries kernel features in a namespace
// that is removed before it returns. Without root it returns only that fact.
func Probe(ctx context.Context, at Targets) (Facts, error) {
	f := Facts{
		Root: os.Geteuid() == 0, Programs: map[string]bool{}, Files: map[string]bool{}, Kernel: map[Feature]error{},
		DiskFree: map[string]uint64{}, ReadOnly: map[string]bool{},
	}
	if !f.Root {
		return f, nil
	}
	for _, r := range requirements() {
		_, err := exec.LookPath(r.program)
		f.Programs[r.program] = err == nil
	}
	for _, r := range nodeFiles() {
		_, err := os.Stat(r.path)
		f.Files[r.path] = err == nil
	}
	f.Kernel = probeKernel(ctx)
	var err error
	if f.Routes, err = routes(); err != nil {
		return f, err
	}
	for _, path := range []string{at.CacheDir, at.StateRoot} {
		if f.DiskFree[path], f.ReadOnly[path], err = disk(path); err != nil {
			return f, err
		}
	}
	if at.Port != 0 {
		f.PortTaken = tryPort(ctx, at.Port)
	}
	if f.MemoryFree, err = memoryFree(); err != nil {
		return f, err
	}
	const inotify = "/proc/sys/fs/inotify/max_user_instances"
	if f.InotifyInstances, err = readNumber(inotify); err != nil {
		return f, err
	}
	f.InotifySettable = unix.Access(inotify, unix.W_OK) == nil
	if f.Labs, err = directories(at.StateRoot); err != nil {
		return f, err
	}
	f.Namespaces, err = files(netns.Dir)
	return f, err
}

// probeKernel tries each feature.
func probeKernel(ctx context.Context) map[Feature]error {
	out := map[Feature]error{
		PIDNS:   exec.CommandContext(ctx, "unshare", "--pid", "--mount", "--fork", "true").Run(),
		Overlay: filesystem("overlay"),
		Cgroups: cgroups(),
	}
	ns, err := netns.New()
	if out[Netns] = err; err != nil {
		return out
	}
	defer ns.Close()
	out[Netns] = netns.Do(ns, func() error {
		out[Veth] = tryVeth()
		out[PolicyRouting] = tryRule()
		out[Nftables] = tryNftables()
		return nil
	})
	return out
}

func tryVeth() error {
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tl-probe0"}, PeerName: "tl-probe1"})
}

func tryRule() error {
	rule := netlink.NewRule()
	rule.Table, rule.Priority, rule.Src = 100, 100, nil
	return netlink.RuleAdd(rule)
}

// tryNftables creates a NAT chain, a connection-tracking rule and a verdict map in one
// transaction.
func tryNftables() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "tl-probe"})
	c.AddChain(&nftables.Chain{
		Table: t, Name: "nat", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	filter := c.AddChain(&nftables.Chain{
		Table: t, Name: "filter", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	verdicts := &nftables.Set{Table: t, Name: "verdicts", IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict}
	if err := c.AddSet(verdicts, nil); err != nil {
		return err
	}
	c.AddRule(&nftables.Rule{Table: t, Chain: filter, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Lookup{SourceRegister: 1, DestRegister: 0, IsDestRegSet: true, SetName: verdicts.Name, SetID: verdicts.ID},
	}})
	return c.Flush()
}

func filesystem(name string) error {
	text, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[len(fields)-1] == name {
			return nil
		}
	}
	return fmt.Errorf("%s is not in /proc/filesystems", name)
}

// cgroups returns an error if a controller that the kubelet needs is missing in both
// cgroup versions.
func cgroups() error {
	text, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		return err
	}
	enabled := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 4 && fields[3] == "1" {
			enabled[fields[0]] = true
		}
	}
	var missing []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !enabled[c] {
			missing = append(missing, c)
		}
	}
	if v2, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil && len(missing) > 0 {
		kept := missing[:0]
		for _, c := range missing {
			if !strings.Contains(" "+strings.TrimSpace(string(v2))+" ", " "+c+" ") {
				kept = append(kept, c)
			}
		}
		missing = kept
	}
	if len(missing) > 0 {
		return fmt.Errorf("no %s", strings.Join(missing, ", "))
	}
	return nil
}

// routes lists the machine's routes without default routes.
func routes() ([]Route, error) {
	list, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, 0)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var out []Route
	for _, r := range list {
		if r.Dst == nil {
			continue
		}
		addr, ok := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		if !ok || bits == 0 || r.Type != unix.RTN_UNICAST {
			continue
		}
		device := "no device"
		if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
			device = link.Attrs().Name
		}
		out = append(out, Route{To: netip.PrefixFrom(addr.Unmap(), bits), Device: device})
	}
	return out, nil
}

// tryPort listens on a port of 127.0.0.1 and closes it.
func tryPort(ctx context.Context, port int) error {
	var l net.ListenConfig
	taken, err := l.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return taken.Close()
}

// disk returns the free bytes of the file system of path, or of its nearest ancestor
// that exists, and whether it is read-only.
func disk(path string) (free uint64, readOnly bool, err error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		if err == nil {
			return st.Bavail * uint64(st.Bsize), st.Flags&unix.ST_RDONLY != 0, nil
		}
		if !errors.Is(err, unix.ENOENT) || path == filepath.Dir(path) {
			return 0, false, fmt.Errorf("read the free space at %s: %w", path, err)
		}
		path = filepath.Dir(path)
	}
}

func memoryFree() (uint64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.Join(lines.Err(), errors.New("no MemAvailable in /proc/meminfo"))
}

func readNumber(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func directories(path string) ([]string, error) {
	return list(path, func(e fs.DirEntry) bool { return e.IsDir() })
}

func files(path string) ([]string, error) {
	return list(path, func(e fs.DirEntry) bool { return !e.IsDir() })
}

func list(path string, keep func(fs.DirEntry) bool) ([]string, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		if keep(e) {
			out = append(out, e.Name())
		}
	}
	return out, err
}
