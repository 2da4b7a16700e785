//go:build lab

package release

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/trunkline/trunkline/lab/image"
)

// The real image, compiled twice: in the lab tier, because the programs of another architecture
// are compiled for no other test.
func TestTheImageOfTheSameSourcesIsTheSame(t *testing.T) {
	o := Options{Source: "../../..", Version: "v0.0.1", Ref: "trunkline.dev/trunkline:v0.0.1", Architectures: []string{"amd64", "arm64"}, Go: "go"}
	var archives [][]byte
	for range 2 {
		o.Out = t.TempDir()
		r, err := Build(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(r.Archive)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, raw)
		if a, err := image.Open(r.Archive); err != nil || !slices.Equal(a.Refs, []string{o.Ref}) {
			t.Errorf("%+v, %v", a, err)
		}
		if len(archives) > 1 {
			continue
		}
		digest, err := v1.NewHash(r.Digest)
		if err != nil {
			t.Fatal(err)
		}
		list, err := layout.ImageIndexFromPath(r.Layout)
		if err != nil {
			t.Fatal(err)
		}
		index, err := list.ImageIndex(digest)
		if err != nil {
			t.Fatal(err)
		}
		of, err := index.IndexManifest()
		if err != nil || len(of.Manifests) != 2 {
			t.Fatalf("%+v, %v", of, err)
		}
		for _, m := range of.Manifests {
			img, err := index.Image(m.Digest)
			if err != nil {
				t.Fatal(err)
			}
			checkContent(t, img, map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[m.Platform.Architecture])
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two builds gave different archives")
	}
}

// checkContent checks that programs run on a machine without a C library and trust the public
// authorities, and that there is a licence for each module that is linked.
func checkContent(t *testing.T, img v1.Image, machine elf.Machine) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	licensed := map[string]bool{}
	var modules, programs []string
	for in := tar.NewReader(content); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if at, ok := strings.CutPrefix(h.Name, "licenses/"); ok && h.Typeflag == tar.TypeReg {
			licensed[at[:strings.LastIndex(at, "/")]] = true
		}
		if h.Typeflag != tar.TypeReg || h.Mode != 0o755 {
			continue
		}
		programs = append(programs, h.Name)
		raw, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		program, err := elf.NewFile(bytes.NewReader(raw))
		if err != nil || program.Machine != machine || program.Section(".interp") != nil {
			t.Errorf("%s: %+v, %v; want a static program for %s", h.Name, program, err, machine)
		}
		info, err := buildinfo.Read(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		authorities := false
		for _, m := range info.Deps {
			modules = append(modules, m.Path+"@"+m.Version)
			authorities = authorities || m.Path == "golang.org/x/crypto/x509roots/fallback"
		}
		if h.Name == "trunkline" && !authorities {
			t.Error("the public certificate authorities are not in trunkline, and the image has no list of them")
		}
	}
	if want := []string{"reference-plugins/loopback", "reference-plugins/portmap", "trunkline", "trunkline-cni"}; !slices.Equal(programs, want) {
		t.Errorf("programs %q, want %q", programs, want)
	}
	for _, m := range append(modules, "go", "trunkline") {
		if !licensed[m] {
			t.Errorf("no licence of %s", m)
		}
	}
}
