package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// maxManifest is the maximum size of an archive's list of images, in bytes.
const maxManifest = 4 << 20

// Files of an archive that list its images.
const (
	dockerManifest = "manifest.json"
	ociIndex       = "index.json"
)

// Annotations of an OCI index from which containerd takes a reference, in its order.
// Source: containerd, images/archive/importer.go and reference.go.
const (
	annotationImageName = "io.containerd.image.name"
	annotationRefName   = "org.opencontainers.image.ref.name"
)

// Open reads the references of an archive that `docker save`, `ctr images export`, skopeo
// and the like write: a tar file in docker's or OCI's layout. It returns an error for a file
// that containerd would not import, or import without a reference.
func Open(path string) (Archive, error) {
	f, err := os.Open(path)
	if err != nil {
		var inner *os.PathError
		if errors.As(err, &inner) {
			err = inner.Err
		}
		return Archive{}, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return Archive{}, errors.Join(err, errors.New("must be a file: an image archive, as `docker save -o` writes it"))
	}
	in := bufio.NewReader(f)
	if program := compressed(in); program != "" {
		return Archive{}, fmt.Errorf("is compressed: decompress it with %s", program)
	}
	lists, err := readLists(in)
	if err != nil {
		return Archive{}, err
	}
	refs, err := references(lists)
	if err != nil {
		return Archive{}, err
	}
	for _, r := range refs {
		if _, err := name.ParseReference(r); err != nil {
			return Archive{}, fmt.Errorf("has an invalid reference: %w", err)
		}
	}
	return Archive{Path: path, Refs: refs}, nil
}

// compressed returns the program that decompresses a file; empty if it is not compressed.
func compressed(in *bufio.Reader) string {
	begin, _ := in.Peek(4) // a shorter file is no archive, which the reader reports
	for magic, program := range map[string]string{"\x1f\x8b": "gunzip", "\x28\xb5\x2f\xfd": "unzstd", "BZh": "bunzip2", "\xfd7zX": "unxz"} {
		if bytes.HasPrefix(begin, []byte(magic)) {
			return program
		}
	}
	return ""
}

// readLists returns the files of an archive that list its images.
func readLists(in io.Reader) (map[string][]byte, error) {
	out := map[string][]byte{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("is not a tar file, or an incomplete one: %w", err)
		}
		if h.Name != dockerManifest && h.Name != ociIndex {
			continue
		}
		if h.Size > maxManifest {
			return nil, fmt.Errorf("%s has %d bytes; at most %d are allowed", h.Name, h.Size, maxManifest)
		}
		if out[h.Name], err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("read %s: %w", h.Name, err)
		}
	}
}

// references returns the references of an archive. docker writes both lists; containerd
// then reads OCI's.
func references(lists map[string][]byte) (refs []string, err error) {
	index, manifest := lists[ociIndex], lists[dockerManifest]
	switch {
	case index != nil:
		var list v1.IndexManifest
		if err := json.Unmarshal(index, &list); err != nil {
			return nil, fmt.Errorf("read %s: %w", ociIndex, err)
		}
		for _, m := range list.Manifests {
			if ref := m.Annotations[annotationImageName]; ref != "" {
				refs = append(refs, ref)
			} else if ref := m.Annotations[annotationRefName]; ref != "" {
				refs = append(refs, ref)
			}
		}
	case manifest != nil:
		var list tarball.Manifest
		if err := json.Unmarshal(manifest, &list); err != nil {
			return nil, fmt.Errorf("read %s: %w", dockerManifest, err)
		}
		for _, d := range list {
			refs = append(refs, d.RepoTags...)
		}
	default:
		return nil, fmt.Errorf("is no image archive: it has neither %s (docker) nor %s (OCI)", dockerManifest, ociIndex)
	}
	if len(refs) == 0 {
		return nil, errors.New("has no image with a reference, by which a pod could name it: save it by its name and tag")
	}
	slices.Sort(refs)
	return slices.Compact(refs), nil
}
