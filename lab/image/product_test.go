package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeELF writes a program's header, which names the machine.
func writeELF(t *testing.T, path string, machine elf.Machine) {
	t.Helper()
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: 1, Ehsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	var out bytes.Buffer
	if err := binary.Write(&out, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	out.WriteString(path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
}

// product has programs for both architectures in a directory.
func product(t *testing.T) Product {
	t.Helper()
	p := Product{Version: "v1.2.3", Source: "https://example.com", Programs: map[string]string{}, Notices: map[string]string{"/licenses/a@v1/LICENSE": "as is"}}
	dir := t.TempDir()
	t.Chdir(dir) // the content of the programs is their path
	for architecture, machine := range machines() {
		for _, program := range []string{"trunkline", "trunkline-cni", "reference-plugins/loopback", "reference-plugins/portmap"} {
			writeELF(t, filepath.Join(architecture, program), machine)
		}
		p.Programs[architecture] = architecture
	}
	return p
}

const productRef = "registry.example.com/trunkline:v1.2.3"

func write(t *testing.T, p Product) (dir string, digest v1.Hash) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "image")
	digest, err := p.WriteLayout(dir, productRef)
	if err != nil {
		t.Fatal(err)
	}
	return dir, digest
}

// The list of a layout has one index, by which tools push and import all platforms at once.
func TestTheProductsImageHasBothPlatforms(t *testing.T) {
	dir, digest := write(t, product(t))
	list, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	top, err := list.IndexManifest()
	if err != nil || len(top.Manifests) != 1 || top.Manifests[0].Digest != digest || top.Manifests[0].MediaType != types.OCIImageIndex {
		t.Fatalf("%+v, %v; want the index %s alone", top, err, digest)
	}
	index, err := list.ImageIndex(digest)
	if err != nil {
		t.Fatal(err)
	}
	of, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, m := range of.Manifests {
		platforms = append(platforms, m.Platform.String())
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkPlatform(t, img, m.Platform.Architecture)
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("platforms %q", platforms)
	}
}

func checkPlatform(t *testing.T, img v1.Image, architecture string) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Config; config.Architecture != architecture || config.OS != "linux" || !slices.Equal(got.Entrypoint, []string{"/trunkline"}) ||
		got.Labels["org.opencontainers.image.version"] != "v1.2.3" || got.User != "" {
		t.Errorf("%s: %+v", architecture, config)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	var programs int
	for _, line := range listing(t, content) {
		switch {
		case strings.Contains(line, "-rwxr-xr-x"):
			programs++
			if !strings.Contains(line, architecture+"/") {
				t.Errorf("%s has a program for another platform: %q", architecture, line)
			}
		case strings.HasPrefix(line, "licenses/a@v1/LICENSE") && line != "licenses/a@v1/LICENSE -rw-r--r-- as is":
			t.Errorf("licence: %q", line)
		}
	}
	if programs != 4 {
		t.Errorf("%s: %d programs, want 4", architecture, programs)
	}
}

func TestAnArchiveOfTheProductIsTheSameAgain(t *testing.T) {
	p := product(t)
	var first []byte
	for range 3 {
		dir, _ := write(t, p)
		file := filepath.Join(t.TempDir(), "image.tar")
		if err := Pack(dir, file); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = got
		}
		if !bytes.Equal(first, got) {
			t.Fatal("two builds gave different archives")
		}
		// As a node's containerd takes it: by the reference of its list.
		if a, err := Open(file); err != nil || !slices.Equal(a.Refs, []string{productRef}) {
			t.Errorf("%+v, %v", a, err)
		}
	}
}

func TestAProgramOfAnotherPlatformIsRefused(t *testing.T) {
	p := product(t)
	writeELF(t, "arm64/trunkline-cni", elf.EM_X86_64)
	if _, err := p.WriteLayout(filepath.Join(t.TempDir(), "image"), productRef); err == nil || !strings.Contains(err.Error(), "image for arm64: /trunkline-cni: is built for EM_X86_64") {
		t.Error(err)
	}
	p.Programs["riscv64"] = p.Programs["amd64"]
	delete(p.Programs, "arm64")
	if _, err := p.WriteLayout(filepath.Join(t.TempDir(), "image"), productRef); err == nil || !strings.Contains(err.Error(), "only for [amd64 arm64]") {
		t.Error(err)
	}
	if _, err := p.WriteLayout(filepath.Join(t.TempDir(), "image"), "No Name"); err == nil || !strings.Contains(err.Error(), `"No Name"`) {
		t.Error(err)
	}
}
