//go:build netns

package bpf

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// openAgain opens the datapath of options, and closes it after the test.
func openAgain(t *testing.T, o Options) (*world, Found) {
	t.Helper()
	d, found, err := Open(o)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return worldOf(d, t), found
}

func TestWhatIsPinnedIsAdopted(t *testing.T) {
	o := options(bpffs(t))
	first, found := openAgain(t, o)
	if found.Maps != Created || found.Programs != Created || len(found.Removed)+len(found.Old) > 0 {
		t.Errorf("at first: %+v", found)
	}
	first.endpoint(3, 20, addr("10.0.0.3"))
	first.State.NextEpoch()
	first.State.LogFlows(7)
	again, found := openAgain(t, o)
	if found.Maps != Adopted || found.Programs != Adopted || len(found.Removed)+len(found.Old)+len(found.Sizes) > 0 {
		t.Errorf("then: %+v", found)
	}
	if id, ok, err := again.Maps.Addresses.Get(AddressOf(addr("10.0.0.3"))); id != 3 || !ok || err != nil {
		t.Errorf("the address has endpoint %d, %v, %v", id, ok, err)
	}
	if again.State.InForce(3) != 20 || again.State.Epoch() != 1 || again.State.FlowLog() != 7 {
		t.Errorf("set %d, epoch %d, flow log %d", again.State.InForce(3), again.State.Epoch(), again.State.FlowLog())
	}
	a, err := first.ProgramIDs()
	must(t, err)
	b, err := again.ProgramIDs()
	must(t, err)
	for name := range a {
		if a[name] != b[name] || a[name] == 0 {
			t.Errorf("program %s has ID %d, then %d", name, a[name], b[name])
		}
	}
}

// Maps of another size are made beside those in force, which stay until they are retired.
func TestAnotherSizeIsMadeBesideWhatIsInForce(t *testing.T) {
	o := options(bpffs(t))
	first, _ := openAgain(t, o)
	first.endpoint(3, SetOpen, addr("10.0.0.3"))
	must(t, first.Called())
	parent := filepath.Join(o.BPFFS, o.Dir)
	for _, size := range []uint32{100, 200} { // the second while the first has not been put in force
		o.Sizes["tl_rows"] = size
		w, found := openAgain(t, o)
		if found.Maps != Beside || len(found.Sizes) != 1 || !strings.Contains(found.Sizes[0], "tl_rows") || !slices.Equal(found.Old, []string{layout + earlierSuffix}) {
			t.Errorf("with another size: %+v", found)
		}
		if want := filepath.Join(parent, layout+earlierSuffix, programsPrefix+objectID(policyObject), forward); found.Forward != want {
			t.Errorf("the program that judges is %q, want %q", found.Forward, want)
		}
		if w.Size("tl_rows") != int(size) || w.State.InForce(3) != SetNone || first.State.InForce(3) != SetOpen {
			t.Errorf("size %d, set %d in the new maps, %d in those in force", w.Size("tl_rows"), w.State.InForce(3), first.State.InForce(3))
		}
	}
	again, found := openAgain(t, o)
	if found.Maps != Adopted || found.Forward == "" || !found.Uncalled {
		t.Errorf("before they are called: %+v", found)
	}
	must(t, again.Called())
	if again, found = openAgain(t, o); found.Forward != "" || len(found.Old) != 1 || found.Uncalled {
		t.Errorf("before the earlier ones are retired: %+v", found)
	}
	must(t, again.RetireLayouts())
	if f := again.Found(); f.Forward != "" || len(f.Old) > 0 || f.Lost {
		t.Errorf("after they are retired: %+v", f)
	}
	if _, found := openAgain(t, o); found.Maps != Adopted || found.Forward != "" {
		t.Errorf("then: %+v", found)
	}
}

// If a datapath beside another one cannot be completed, that one stays open, pinned and in force.
func TestADatapathStaysIfTheOneBesideItFails(t *testing.T) {
	o := options(bpffs(t))
	d, _, err := Open(o)
	must(t, err)
	first := worldOf(d, t)
	first.endpoint(3, SetOpen, addr("10.0.0.3"))
	must(t, first.Called())
	good := first.options.Netns
	closed, err := os.Open(os.DevNull)
	must(t, err)
	must(t, closed.Close())
	first.options.Netns = closed
	if same, err := first.Beside(); err == nil || same != first.Datapath {
		t.Errorf("without a namespace: %v, error %v", same == first.Datapath, err)
	}
	if _, err := os.Stat(first.ForwardPath()); err != nil {
		t.Errorf("the program of the rule: %v", err)
	}
	if _, found := openAgain(t, o); found.Maps != Adopted || found.Programs != Adopted || found.Uncalled || len(found.Old) > 0 || first.State.InForce(3) != SetOpen {
		t.Errorf("found %+v, set %d", found, first.State.InForce(3))
	}
	first.options.Netns = good
	beside, err := first.Beside()
	must(t, err)
	if found := beside.Found(); found.Maps != Beside || found.Forward == "" {
		t.Errorf("then: %+v", found)
	}
	must(t, beside.Close())
}

// What has not been called is not in force: it is no earlier layout, and another size replaces it.
func TestMapsThatWereNotCalledAreNotInForce(t *testing.T) {
	o := options(bpffs(t))
	for _, size := range []uint32{100, 100, 200} {
		o.Sizes["tl_rows"] = size
		w, found := openAgain(t, o)
		if !found.Uncalled || found.Forward != "" || len(found.Old) > 0 || w.Size("tl_rows") != int(size) {
			t.Errorf("%d: %+v", size, found)
		}
	}
	must(t, os.Remove(filepath.Join(o.BPFFS, o.Dir, layout, "tl_classes"))) // as if a process ended while it pinned them
	w, found := openAgain(t, o)
	if !found.Uncalled || found.Maps != Created {
		t.Errorf("with half of the maps: %+v", found)
	}
	must(t, w.Called())
	must(t, w.Called())
	if _, found := openAgain(t, o); found.Uncalled || found.Maps != Adopted {
		t.Errorf("called: %+v", found)
	}
	parent := filepath.Join(o.BPFFS, o.Dir)
	must(t, unix.Rename(filepath.Join(parent, layout), filepath.Join(parent, "v0")))
	must(t, os.Mkdir(filepath.Join(parent, "v0", uncalledName), 0o700))
	if _, found := openAgain(t, o); found.Forward != "" || !slices.Equal(found.Old, []string{"v0"}) {
		t.Errorf("beside a layout that was not called: %+v", found)
	}
}

// A size that the kernel refuses leaves the maps as they are.
func TestASizeThatTheKernelRefusesIsNamed(t *testing.T) {
	o := options(bpffs(t))
	first, _ := openAgain(t, o)
	first.endpoint(3, SetOpen, addr("10.0.0.3"))
	o.Sizes["tl_flows"] = 4097 // of a ring buffer: a power of two of pages
	again, found := openAgain(t, o)
	if found.Maps != Adopted || !strings.Contains(found.Refused, "tl_flows") || again.State.InForce(3) != SetOpen {
		t.Errorf("%+v, set %d", found, again.State.InForce(3))
	}
}

// What a change that was not finished has written is deleted, and what is in force stays.
func TestEntriesThatNoSetInForceRefersToAreDeleted(t *testing.T) {
	w := newWorld(t)
	for _, number := range []uint32{16, 17, 18} {
		w.set(number, Ingress)
		w.row(number, Ingress, 0, 1)
		must(t, w.Maps.Classes.Put(ClassKey{number, AddressOf(addr("10.0.0.9"))}, 1))
		must(t, w.Maps.Prefixes.Put(PrefixKeyOf(number, netip.MustParsePrefix("10.0.0.0/8")), 1))
		must(t, w.Maps.Ports.Put(PortKey{Ports: number, Protocol: protoTCP, Port: 80}, 1))
		must(t, w.Maps.PortRanges.Put(PortRangeKeyOf(number, protoTCP, 0, 1), 1))
	}
	must(t, w.Maps.Rows.Put(RowKey{Set: 30}, 1)) // of a set that is not written
	w.endpoint(1, 17, addr("10.0.0.3"))
	for _, want := range []Numbers{{30, 18, 18}, {17, 17, 17}} {
		found, stay, err := w.DeleteUnused()
		if err != nil || found != want {
			t.Errorf("%+v, %v; want %+v", found, err, want)
		}
		for _, name := range []string{MapSets, MapRows, MapClasses, MapPrefixes, MapPorts, MapPortRanges} {
			if stay[name] != 1 {
				t.Errorf("%d entries of %s, want 1", stay[name], name)
			}
		}
	}
	if _, found, err := w.Maps.Sets.Get(17); !found || err != nil {
		t.Errorf("the set in force is gone: %v", err)
	}
}

// A map that lost entries could allow more than before: other classes have other rights.
func TestADamagedPinIsReplacedClosed(t *testing.T) {
	for what, damage := range map[string]func(dir string) error{
		"a map is missing":          func(dir string) error { return os.Remove(filepath.Join(dir, "tl_classes")) },
		"the endpoints are missing": func(dir string) error { return os.Remove(filepath.Join(dir, "tl_endpoints")) },
		"a directory is in a map's place": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "tl_rows")), os.Mkdir(filepath.Join(dir, "tl_rows"), 0o700))
		},
		"a program is in a map's place": func(dir string) error {
			return move(filepath.Join(dir, programsPrefix+objectID(policyObject), guard), filepath.Join(dir, "tl_sets"))
		},
		"another map is in a map's place": func(dir string) error { return move(filepath.Join(dir, "tl_ports"), filepath.Join(dir, "tl_sets")) },
		"the programs are without maps":   func(dir string) error { return removeMaps(dir) },
	} {
		t.Run(what, func(t *testing.T) {
			o := options(bpffs(t))
			first, _ := openAgain(t, o)
			first.endpoint(3, SetOpen, addr("10.0.0.3"))
			must(t, first.Called())
			must(t, damage(first.dir))
			again, found := openAgain(t, o)
			if found.Maps != Replaced && what != "the programs are without maps" || found.Programs != Replaced || len(found.Removed) == 0 {
				t.Errorf("found: %+v", found)
			}
			if set := again.State.InForce(3); set != SetNone {
				t.Errorf("set %d is in force, want none", set)
			}
			again.endpoint(3, SetOpen, addr("10.0.0.3"))
			if !again.forward(ip(addr("10.0.0.3"), addr("192.0.2.1"), udp(1, 2))) {
				t.Error("the new programs do not use the new maps")
			}
			if _, found := openAgain(t, o); found.Maps != Adopted || found.Programs != Adopted {
				t.Errorf("found after the repair: %+v", found)
			}
		})
	}
}

func move(from, to string) error {
	if err := os.Remove(to); err != nil {
		return err
	}
	return unix.Rename(from, to)
}

func removeMaps(dir string) error {
	spec, err := object()
	if err != nil {
		return err
	}
	var errs []error
	for name := range spec.Maps {
		errs = append(errs, os.Remove(filepath.Join(dir, name)))
	}
	return errors.Join(errs...)
}

func TestDamagedProgramsAreReplacedAndTheMapsKept(t *testing.T) {
	for what, damage := range map[string]func(dir string) error{
		"one is missing":              func(dir string) error { return os.Remove(filepath.Join(dir, forward)) },
		"two have each other's place": func(dir string) error { return exchangePins(filepath.Join(dir, fromPod), filepath.Join(dir, toPod)) },
		"they are of another object":  func(dir string) error { return unix.Rename(dir, filepath.Join(filepath.Dir(dir), programsPrefix+"0")) },
		"a directory is in the place one": func(dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, judge)), os.Mkdir(filepath.Join(dir, judge), 0o700))
		},
	} {
		t.Run(what, func(t *testing.T) {
			o := options(bpffs(t))
			first, _ := openAgain(t, o)
			first.endpoint(3, SetOpen, addr("10.0.0.3"))
			must(t, damage(filepath.Join(first.dir, programsPrefix+objectID(policyObject))))
			again, found := openAgain(t, o)
			if found.Maps != Adopted || found.Programs != Replaced || len(found.Removed) != 1 {
				t.Errorf("found: %+v", found)
			}
			if again.State.InForce(3) != SetOpen {
				t.Error("the set in force is lost")
			}
		})
	}
}

func exchangePins(a, b string) error {
	return errors.Join(unix.Rename(a, a+"-"), unix.Rename(b, a), unix.Rename(a+"-", b))
}

func TestAnotherLayoutStaysUntilItIsRetired(t *testing.T) {
	o := options(bpffs(t))
	before, _ := openAgain(t, o)
	must(t, before.Called())
	parent := filepath.Join(o.BPFFS, o.Dir)
	must(t, unix.Rename(filepath.Join(parent, layout), filepath.Join(parent, "v0")))
	w, found := openAgain(t, o)
	if found.Maps != Created || !slices.Equal(found.Old, []string{"v0"}) {
		t.Errorf("found: %+v", found)
	}
	if want := filepath.Join(parent, "v0", programsPrefix+objectID(policyObject), forward); found.Forward != want || w.Found().Forward != want {
		t.Errorf("the program that judges is %q, want %q", found.Forward, want)
	}
	for _, name := range []string{layout, "..", ".", "", "../v0", "a/b"} {
		if err := w.RetireLayout(name); err == nil {
			t.Errorf("%q is retired", name)
		}
	}
	for range 2 {
		must(t, w.RetireLayout("v0"))
	}
	if _, found := openAgain(t, o); found.Maps != Adopted || len(found.Old) > 0 {
		t.Errorf("then: %+v", found)
	}
	must(t, w.Remove())
	if _, err := os.Stat(parent); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pins are there after Remove: %v", err)
	}
}

func TestOptionsThatCannotBeAreRefused(t *testing.T) {
	dir := bpffs(t)
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for want, o := range map[string]Options{
		`size of map "tl_none": 1: must be`:  {BPFFS: dir, Dir: "a", Sizes: map[string]uint32{"tl_none": 1}},
		`size of map "tl_sets": 0: must be`:  {BPFFS: dir, Dir: "a", Sizes: map[string]uint32{"tl_sets": 0}},
		`size of map "tl_drops": 1: must be`: {BPFFS: dir, Dir: "a", Sizes: map[string]uint32{"tl_drops": 1}},
		"not a directory":                    {BPFFS: file, Dir: "a"},
	} {
		o.Log = options(dir).Log
		if _, _, err := Open(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A feature that the kernel lacks is named.
func TestTheErrorNamesWhatTheKernelLacks(t *testing.T) {
	broken := errors.New("load")
	if err := explain(broken, needed()); !errors.Is(err, broken) || errors.Is(err, ErrUnsupported) {
		t.Errorf("this kernel has all features: %v", err)
	}
	lacking := append(needed(), feature{"ringbuf (5.8)", func() error { return ebpf.ErrNotSupported }})
	if err := explain(broken, lacking); !errors.Is(err, ErrUnsupported) || !errors.Is(err, broken) || !strings.Contains(err.Error(), "the kernel lacks ringbuf (5.8)") {
		t.Errorf("got %v", err)
	}
}

// Kernels before 5.11 get programs with another clock.
func TestProgramsWithThePreciseClockLoad(t *testing.T) {
	spec, err := object()
	must(t, err)
	withPreciseClock(spec)
	collection, err := ebpf.NewCollection(spec)
	must(t, err)
	collection.Close()
}
