package image

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Product is the product's image for several architectures.
type Product struct {
	Version string
	// Source is the repository's address, a label of the image.
	Source string
	// Programs are, by architecture, the directory of the programs: trunkline,
	// trunkline-cni and reference-plugins.
	Programs map[string]string
	// Notices are licence texts by their path in the image.
	Notices map[string]string
}

// machines are the architectures of product images, and what their programs are built for.
func machines() map[string]elf.Machine {
	return map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
}

// WriteLayout writes the image as an OCI image layout to a directory that it creates, under a
// reference such as "trunkline.dev/trunkline:v1.0.0", and returns the digest by which a registry
// has it. The same programs and texts give the same bytes.
func (p Product) WriteLayout(dir, ref string) (v1.Hash, error) {
	if _, err := name.NewTag(ref, name.StrictValidation); err != nil {
		return v1.Hash{}, fmt.Errorf("image reference %q: %w", ref, err)
	}
	list := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range slices.Sorted(maps.Keys(p.Programs)) {
		img, err := p.platform(architecture)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("image for %s: %w", architecture, err)
		}
		list = mutate.AppendManifests(list, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}},
		})
	}
	digest, err := list.Digest()
	if err != nil {
		return digest, err
	}
	// A list with the one index, which has the reference, as skopeo writes it.
	at, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return digest, err
	}
	return digest, at.AppendIndex(list, layout.WithAnnotations(map[string]string{annotationImageName: ref, annotationRefName: ref}))
}

// platform is the image for one architecture. Its layer is compressed, because registries store
// it and nodes pull it.
func (p Product) platform(architecture string) (v1.Image, error) {
	from := p.Programs[architecture]
	r := productRecipe(p.Version, filepath.Join(from, "trunkline"), filepath.Join(from, "trunkline-cni"), filepath.Join(from, "reference-plugins"))
	r.Architecture, r.Texts = architecture, p.Notices
	r.Labels["org.opencontainers.image.source"], r.Labels["org.opencontainers.image.licenses"] = p.Source, "Apache-2.0"
	for at, program := range r.Files {
		if err := builtFor(program, architecture); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
	}
	content, err := r.layer()
	if err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	layer, err := tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	return r.configured(img)
}

// builtFor returns an error if a file is no program for an architecture.
func builtFor(file, architecture string) error {
	want, known := machines()[architecture]
	if !known {
		return fmt.Errorf("no images are built for this architecture, only for %v", slices.Sorted(maps.Keys(machines())))
	}
	program, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer program.Close()
	if program.Machine != want {
		return fmt.Errorf("is built for %s, want %s", program.Machine, want)
	}
	return nil
}

// Pack writes the files of a directory to a tar file, sorted and without times, so that the same
// files give the same bytes. A layout becomes an OCI archive.
func Pack(dir, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	// In lexical order.
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		at, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		e := entry{header: tar.Header{Name: filepath.ToSlash(at), Typeflag: tar.TypeReg, Mode: 0o644, Size: info.Size(), ModTime: epoch(), Format: tar.FormatPAX}, from: path}
		return e.write(w)
	})
	return errors.Join(err, w.Close(), f.Close())
}
