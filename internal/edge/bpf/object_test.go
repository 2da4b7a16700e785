package bpf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
)

const (
	sources     = "../../../bpf"
	otherObject = "testdata/other.o"
)

func TestTheObjectIsOfTheseSources(t *testing.T) {
	sums, err := os.ReadFile("policy.sha256")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed = append(listed, filepath.Base(name))
		content, err := os.ReadFile(filepath.Join(sources, "..", name))
		if err != nil {
			t.Fatal(err)
		}
		if of := sha256.Sum256(content); hex.EncodeToString(of[:]) != sum {
			t.Errorf("%s has changed since the programs were compiled: run `make generate`", name)
		}
	}
	entries, err := os.ReadDir(sources)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"policy.o", "other.o"}
	for _, e := range entries {
		want = append(want, e.Name())
	}
	slices.Sort(want)
	slices.Sort(listed)
	if !slices.Equal(listed, want) || len(want) < 5 {
		t.Errorf("the programs were compiled from %v, want %v: run `make generate`", listed, want)
	}
}

// structures are those that Go and C share, by their names in C.
func structures() map[string]any {
	return map[string]any{
		"address": Address{}, "set": Set{}, "class_key": ClassKey{}, "prefix_key": PrefixKey{}, "port_key": PortKey{},
		"port_range_key": PortRangeKey{}, "row_key": RowKey{}, "connection_key": ConnectionKey{}, "connection": Connection{}, "count_key": CountKey{},
	}
}

// renamed are the fields of Go that have another name in C.
func renamed() map[string]string {
	return map[string]string{"bits": "prefixlen", "podport": "pod_port", "peerport": "peer_port", "portclass": "port_class", "_": "pad"}
}

func structure(t *testing.T, spec *ebpf.CollectionSpec, name string) *btf.Struct {
	t.Helper()
	var s *btf.Struct
	if err := spec.Types.TypeByName(name, &s); err != nil {
		t.Fatalf("struct %s: %v", name, err)
	}
	return s
}

func TestStructuresAreAsInTheObject(t *testing.T) {
	spec, err := object()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range structures() {
		s, of := structure(t, spec, name), reflect.TypeOf(value)
		if uintptr(s.Size) != of.Size() {
			t.Errorf("struct %s has %d bytes, %s has %d", name, s.Size, of, of.Size())
		}
		if of.Kind() != reflect.Struct {
			continue
		}
		if of.NumField() != len(s.Members) {
			t.Errorf("struct %s has %d members, %s has %d", name, len(s.Members), of, of.NumField())
			continue
		}
		for i, m := range s.Members {
			f := of.Field(i)
			want := strings.ToLower(f.Name)
			if r, ok := renamed()[want]; ok {
				want = r
			}
			size, err := btf.Sizeof(m.Type)
			if err != nil || uintptr(size) != f.Type.Size() || uintptr(m.Offset.Bytes()) != f.Offset || m.Name != want {
				t.Errorf("%s.%s has %d bytes at %d (%v), %s.%s %d at %d", name, m.Name, size, m.Offset.Bytes(), err, of, f.Name, f.Type.Size(), f.Offset)
			}
		}
	}
	for name, size := range map[string]uint32{"flow": flowSize, "endpoint": endpointSize, "state": 8} {
		if s := structure(t, spec, name); s.Size != size {
			t.Errorf("struct %s has %d bytes, want %d", name, s.Size, size)
		}
	}
	if n := spec.Maps["tl_endpoints"].MaxEntries; n != uint32(endpoint.MaxID)+1 {
		t.Errorf("tl_endpoints has %d entries, want one for each ID until %d", n, endpoint.MaxID)
	}
}

// constants are the enumerators and definitions of the sources.
func constants(t *testing.T) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	files, err := filepath.Glob(filepath.Join(sources, "*.h"))
	if err != nil {
		t.Fatal(err)
	}
	pattern := regexp.MustCompile(`(?m)^\s*(?:#define )?([A-Z][A-Z0-9_]*) (?:= )?((?:0x)?[0-9a-f]+(?: \* [0-9]+)*),?(?:\s+/\*.*)?$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
			value := uint64(1)
			for _, factor := range strings.Split(m[2], " * ") {
				n, err := strconv.ParseUint(factor, 0, 64)
				if err != nil {
					t.Fatal(err)
				}
				value *= n
			}
			all[m[1]] = value
		}
	}
	return all
}

func TestConstantsAreAsInTheSources(t *testing.T) {
	have := constants(t)
	seconds := func(d time.Duration) uint64 { return uint64(d / time.Second) }
	for name, want := range map[string]uint64{
		"MARK_PENDING": hostnet.MarkPending, "MARK_JUDGED": hostnet.MarkJudged,
		"INGRESS": uint64(Ingress), "EGRESS": uint64(Egress),
		"SET_NONE": uint64(SetNone), "SET_OPEN": uint64(SetOpen), "SET_PENDING": uint64(SetPending), "SET_FIRST": uint64(SetFirst),
		"OPENING": uint64(Opening), "ESTABLISHED": uint64(Established), "CLOSING": uint64(Closing),
		"BY_POLICY": uint64(ByPolicy), "MALFORMED": uint64(Malformed), "NOT_READY": uint64(NotReady),
		"FRAGMENT": uint64(Fragment), "UNRELATED": uint64(Unrelated), "ICMP_TYPE": uint64(ICMPType),
		"TIMEOUT_TCP_OPENING": seconds(timeoutTCPOpening), "TIMEOUT_TCP_ESTABLISHED": seconds(timeoutTCPEstablished),
		"TIMEOUT_TCP_CLOSING": seconds(timeoutTCPClosing), "TIMEOUT_REVOKED": seconds(timeoutRevoked),
		"TIMEOUT_UDP_OPENING": seconds(timeoutUDPOpening), "TIMEOUT_UDP_ESTABLISHED": seconds(timeoutUDPEstablished),
		"TIMEOUT_ICMP": seconds(timeoutICMP), "TIMEOUT_OTHER": seconds(timeoutOther),
	} {
		if got, ok := have[name]; !ok || got != want {
			t.Errorf("%s is %d (%v) in C, %d in Go", name, got, ok, want)
		}
	}
	spec, err := object()
	if err != nil {
		t.Fatal(err)
	}
	if n := spec.Maps["tl_drops"].MaxEntries; n != uint32(reasons) {
		t.Errorf("%d reasons are counted, want %d", n, reasons)
	}
}

// A change of a map must change the layout's version: programs of one layout read the maps of it.
func TestTheLayoutHasItsVersion(t *testing.T) {
	spec, err := object()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "layout %s\n", layout)
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		fmt.Fprintf(&b, "%s %s key %s value %s flags %#x\n", name, m.Type, described(m.Key), described(m.Value), m.Flags)
	}
	const golden = "testdata/layout.txt"
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the maps have changed:\n%s\nIf a released version pins those of %s, raise the constant layout; then write this to the file", b.String(), golden)
	}
}

// described is a type as its size and the offsets of its members.
func described(t btf.Type) string {
	if t == nil {
		return "none"
	}
	size, err := btf.Sizeof(t)
	if err != nil {
		return err.Error()
	}
	out := strconv.Itoa(size)
	if s, ok := btf.UnderlyingType(t).(*btf.Struct); ok {
		out += "{"
		for _, m := range s.Members {
			out += fmt.Sprintf("%s@%d ", m.Name, m.Offset.Bytes())
		}
		out = strings.TrimSpace(out) + "}"
	}
	return out
}

// Every program of the other object has other instructions, and the same maps.
func TestTheOtherObjectHasOtherInstructions(t *testing.T) {
	compiled, err := os.ReadFile(otherObject)
	if err != nil {
		t.Fatal(err)
	}
	own, err := object()
	if err != nil {
		t.Fatal(err)
	}
	other, err := parse(compiled)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range own.Programs {
		if o := other.Programs[name]; o == nil || fmt.Sprint(o.Instructions) == fmt.Sprint(p.Instructions) {
			t.Errorf("program %s: it is missing or has the same instructions", name)
		}
	}
	for name, m := range own.Maps {
		if o := other.Maps[name]; o == nil || o.Type != m.Type || o.KeySize != m.KeySize || o.ValueSize != m.ValueSize || o.MaxEntries != m.MaxEntries {
			t.Errorf("map %s is %v, want %v", name, o, m)
		}
	}
}

// Kernels before 5.11 do not have the coarse clock.
func TestTheCoarseClockIsReplacedInAllPrograms(t *testing.T) {
	spec, err := object()
	if err != nil {
		t.Fatal(err)
	}
	calls := func(f asm.BuiltinFunc) (n int) {
		for _, p := range spec.Programs {
			for _, in := range p.Instructions {
				if in.IsBuiltinCall() && in.Constant == int64(f) {
					n++
				}
			}
		}
		return n
	}
	coarse, precise := calls(asm.FnKtimeGetCoarseNs), calls(asm.FnKtimeGetNs)
	withPreciseClock(spec)
	if coarse == 0 || calls(asm.FnKtimeGetCoarseNs) != 0 || calls(asm.FnKtimeGetNs) != coarse+precise {
		t.Errorf("of %d calls of the coarse clock %d are left, and %d of %d are of the other", coarse, calls(asm.FnKtimeGetCoarseNs), calls(asm.FnKtimeGetNs), coarse+precise)
	}
}
