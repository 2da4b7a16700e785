package preflight

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func want() Want {
	return Want{
		Lab: "lab", Nodes: 3, Cloud: true, NetworkDaemons: true,
		VPC: netip.MustParsePrefix("10.0.0.0/16"), Services: netip.MustParsePrefix("172.20.0.0/16"),
	}
}

// fit returns the facts of a machine that can run three nodes.
func fit() Facts {
	f := Facts{
		Root: true, Programs: map[string]bool{}, Files: map[string]bool{}, Kernel: map[Feature]error{},
		Routes:     []Route{{netip.MustParsePrefix("192.168.1.0/24"), "eth0"}},
		DiskFree:   map[string]uint64{"/var/cache/trunkline": 50 << 30, "/var/lib/trunkline-lab": 50 << 30},
		MemoryFree: 8 << 30, InotifyInstances: 128, InotifySettable: true,
	}
	for _, r := range requirements() {
		f.Programs[r.program] = true
	}
	for _, r := range nodeFiles() {
		f.Files[r.path] = true
	}
	return f
}

func TestAFitMachineIsNotRefused(t *testing.T) {
	if p := Check(want(), fit()); len(p) > 0 {
		t.Errorf("refused: %v", p)
	}
}

func TestOnlyWhatTheLabUsesMustExist(t *testing.T) {
	w, f := want(), fit()
	w.Cloud, w.NetworkDaemons, f.Files = false, false, nil
	if p := Check(w, f); len(p) > 0 {
		t.Errorf("a lab without a cloud and without images is refused: %v", p)
	}
}

func TestEachProblemNamesItsRemedy(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Want, *Facts)
		want   []string
	}{
		"not root": {func(_ *Want, f *Facts) { f.Root = false }, []string{"not root", "sudo"}},
		"two programs of one package": {func(_ *Want, f *Facts) {
			f.Programs["nsenter"], f.Programs["unshare"] = false, false
		}, []string{"nsenter, unshare", "apt-get install util-linux"}},
		"a program": {func(_ *Want, f *Facts) { f.Programs["nft"] = false }, []string{"apt-get install nftables"}},
		"no certificate authorities": {
			func(_ *Want, f *Facts) { f.Files["/etc/ssl/certs/ca-certificates.crt"] = false },
			[]string{"missing, and used by nodes: /etc/ssl/certs/ca-certificates.crt", "apt-get install ca-certificates"},
		},
		"no network daemon": {func(_ *Want, f *Facts) {
			f.Files["/usr/lib/systemd/systemd-networkd"], f.Files["/usr/bin/networkctl"] = false, false
		}, []string{"/usr/lib/systemd/systemd-networkd, /usr/bin/networkctl: apt-get install systemd"}},
		"a kernel without veth": {
			func(_ *Want, f *Facts) { f.Kernel[Veth] = errors.New("operation not supported") },
			[]string{"lacks veth (operation not supported)", "CONFIG_VETH"},
		},
		"a kernel without nftables": {func(_ *Want, f *Facts) { f.Kernel[Nftables] = errors.New("x") }, []string{"CONFIG_NFT_NAT"}},
		"the VPC's range in use": {func(_ *Want, f *Facts) {
			f.Routes = append(f.Routes, Route{netip.MustParsePrefix("10.0.7.0/24"), "wg0"})
		}, []string{"10.0.0.0/16 (the VPC) is taken: this machine routes 10.0.7.0/24 to wg0", "vpc.cidr"}},
		"a larger range over Services": {func(_ *Want, f *Facts) {
			f.Routes = append(f.Routes, Route{netip.MustParsePrefix("172.16.0.0/12"), "docker0"})
		}, []string{"Services", "docker0", "kubernetes.serviceCIDR"}},
		"the API's range in use": {func(_ *Want, f *Facts) {
			f.Routes = append(f.Routes, Route{netip.MustParsePrefix("198.51.100.0/24"), "eth1"})
		}, []string{"the embedded EC2 API"}},
		"the outside host's range in use": {func(_ *Want, f *Facts) {
			f.Routes = append(f.Routes, Route{netip.MustParsePrefix("203.0.113.8/32"), "eth1"})
		}, []string{"the outside host"}},
		"too little memory": {func(_ *Want, f *Facts) { f.MemoryFree = 1 << 30 }, []string{"1.0 GiB of memory free; 3 nodes need about 2.5 GiB", "--nodes 1"}},
		"a full disk": {
			func(_ *Want, f *Facts) { f.DiskFree["/var/lib/trunkline-lab"] = 1 << 30 },
			[]string{"1.0 GiB free at /var/lib/trunkline-lab", "--cache-dir"},
		},
		"a disk that cannot be written": {
			func(_ *Want, f *Facts) { f.ReadOnly = map[string]bool{"/var/cache/trunkline": true} },
			[]string{"/var/cache/trunkline is on a read-only file system", "--cache-dir"},
		},
		"a port that is taken": {
			func(w *Want, f *Facts) { w.Port, f.PortTaken = 6443, errors.New("address already in use") },
			[]string{"port 6443 of 127.0.0.1 is not available (address already in use)", "kubernetes.apiPort"},
		},
		"few inotify instances on a read-only sysctl": {
			func(w *Want, f *Facts) { w.Nodes, f.InotifySettable = 20, false; f.MemoryFree = 64 << 30 },
			[]string{"fs.inotify.max_user_instances is 128; 20 nodes need 196", "sysctl fs.inotify.max_user_instances=512"},
		},
		"foreign namespaces": {
			func(_ *Want, f *Facts) { f.Namespaces = []string{"tl-lab-node1", "other"} },
			[]string{"tl-lab-node1", "--name lab down"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, f := want(), fit()
			tc.change(&w, &f)
			problems := Check(w, f)
			if len(problems) != 1 {
				t.Fatalf("%d problems, want 1: %v", len(problems), problems)
			}
			for _, part := range tc.want {
				if !strings.Contains(problems.Error(), part) {
					t.Errorf("%v\nlacks %q", problems, part)
				}
			}
		})
	}
}

func TestSufficientMachinesAreNotRefused(t *testing.T) {
	for name, change := range map[string]func(*Want, *Facts){
		"few inotify instances that the lab may raise": func(w *Want, f *Facts) { w.Nodes = 13; f.MemoryFree = 64 << 30 },
		"namespaces of a crashed lab": func(_ *Want, f *Facts) {
			f.Labs, f.Namespaces = []string{"lab"}, []string{"tl-lab-node1"}
		},
		"namespaces of a lab with our name as prefix": func(_ *Want, f *Facts) { f.Namespaces = []string{"tl-lab-two-node1"} },
		"the lab's own memory while it runs": func(w *Want, f *Facts) {
			w.Running, f.MemoryFree, f.Namespaces = true, 1<<20, []string{"tl-lab-node1"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, f := want(), fit()
			change(&w, &f)
			if p := Check(w, f); len(p) > 0 {
				t.Errorf("refused: %v", p)
			}
		})
	}
}

func TestEveryProblemIsReportedAtOnce(t *testing.T) {
	f := fit()
	f.Programs["nft"], f.MemoryFree = false, 0
	f.Kernel[Overlay] = errors.New("absent")
	if p := Check(want(), f); len(p) != 3 || strings.Count(p.Error(), "\n") != 2 {
		t.Errorf("%d problems:\n%v", len(p), p)
	}
}

func TestEveryFeatureNamesItsKernelOption(t *testing.T) {
	for _, f := range features() {
		if !strings.Contains(f.option(), "CONFIG_") {
			t.Errorf("%s: %q", f, f.option())
		}
	}
}

func TestAPortInUseIsDetectedAndAFreeOneIsReleased(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := tryPort(t.Context(), port); err == nil {
		t.Errorf("port %d is in use, but tryPort returned no error", port)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := tryPort(t.Context(), port); err != nil {
			t.Errorf("a free port: %v", err)
		}
	}
}

func TestProbeWithoutRootDoesNotProbeTheKernel(t *testing.T) {
	f, err := Probe(t.Context(), Targets{CacheDir: t.TempDir(), StateRoot: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if !f.Root && len(f.Kernel) > 0 {
		t.Errorf("the kernel was probed without root: %v", f.Kernel)
	}
	if f.Root && f.MemoryFree == 0 {
		t.Error("no memory on a machine that runs this test")
	}
}
