// Package image builds the container images of the lab's nodes: archives with one or two
// static binaries each. Builds are reproducible: the same files give the same bytes. An
// archive is stored in the cache under a key derived from its content. Product builds the image
// that operators push to a registry, for several architectures.
//
// It reads the given files and writes to the given directory. lab/cli and lab/image/cmd/product
// call it.
package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Recipe is the content and configuration of an image.
type Recipe struct {
	// Files maps absolute paths in the image to source files.
	Files map[string]string
	// Texts are files that are not programs: path in the image to content.
	Texts map[string]string `json:",omitempty"`
	// Links are symbolic links: path in the image to target.
	Links map[string]string
	// Dirs are empty, world-writable directories.
	Dirs       []string
	Entrypoint []string
	Cmd        []string
	Env        []string
	// User as in "1000:1000"; empty is root.
	User   string
	Labels map[string]string
	// Architecture of the programs, as in GOARCH; empty is that of this machine.
	Architecture string `json:",omitempty"`
}

// entry is one file, directory or link of the layer.
type entry struct {
	header tar.Header
	from   string // file to read; empty for directories, links and texts
	text   string
}

// Write writes a docker archive to path that has the image under every reference, such as
// "trunkline.dev/pause:dev".
func (r Recipe) Write(path string, refs ...string) error {
	img, err := r.image()
	if err != nil {
		return err
	}
	byRef := map[name.Reference]v1.Image{}
	for _, text := range refs {
		ref, err := name.NewTag(text, name.StrictValidation)
		if err != nil {
			return fmt.Errorf("image reference %q: %w", text, err)
		}
		byRef[ref] = img
	}
	if len(byRef) == 0 {
		return errors.New("an image needs at least one reference")
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(writeSorted(f, byRef), f.Close())
}

// writeSorted is tarball.MultiRefWrite with the references in the manifest sorted. The
// library writes them in the random order of a map.
func writeSorted(w io.Writer, byRef map[name.Reference]v1.Image) error {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(tarball.MultiRefWrite(byRef, pw)) }()
	defer pr.Close() // ends the writer after an error
	in, out := tar.NewReader(pr), tar.NewWriter(w)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		var content io.Reader = in
		if h.Name == "manifest.json" {
			sorted, err := sortTags(in)
			if err != nil {
				return fmt.Errorf("%s: %w", h.Name, err)
			}
			content, h.Size = bytes.NewReader(sorted), int64(len(sorted))
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(out, content); err != nil {
			return err
		}
	}
}

func sortTags(r io.Reader) ([]byte, error) {
	var manifest tarball.Manifest
	if err := json.NewDecoder(r).Decode(&manifest); err != nil {
		return nil, err
	}
	for i := range manifest {
		slices.Sort(manifest[i].RepoTags)
	}
	return json.Marshal(manifest)
}

func (r Recipe) image() (v1.Image, error) {
	layer, err := r.layer()
	if err != nil {
		return nil, err
	}
	// Uncompressed: the archive stays on the machine, and decompressing it on every node
	// costs more than reading it.
	img, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer, types.DockerUncompressedLayer))
	if err != nil {
		return nil, err
	}
	return r.configured(img)
}

// configured returns an image with the recipe's configuration.
func (r Recipe) configured(img v1.Image) (v1.Image, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", cmp.Or(r.Architecture, architecture())
	config.Created = v1.Time{Time: epoch()}
	config.Config = v1.Config{
		Entrypoint: r.Entrypoint, Cmd: r.Cmd, User: r.User, Labels: r.Labels,
		Env: append([]string{"PATH=/bin:/"}, r.Env...), WorkingDir: "/",
	}
	return mutate.ConfigFile(img, config)
}

// layer returns the tar archive of the image's files.
func (r Recipe) layer() ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range r.entries() {
		if err := e.write(w); err != nil {
			return nil, fmt.Errorf("pack %s: %w", e.header.Name, err)
		}
	}
	return out.Bytes(), w.Close()
}

// entries returns all entries, parents before children.
func (r Recipe) entries() []entry {
	byName := map[string]entry{}
	add := func(at string, e entry) {
		at = strings.TrimPrefix(path.Clean("/"+at), "/")
		for dir := path.Dir(at); dir != "."; dir = path.Dir(dir) {
			if _, ok := byName[dir]; !ok {
				byName[dir] = entry{header: tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}}
			}
		}
		e.header.Name = at
		if e.header.Typeflag == tar.TypeDir {
			e.header.Name += "/"
		}
		byName[at] = e
	}
	for _, at := range r.Dirs {
		add(at, entry{header: tar.Header{Typeflag: tar.TypeDir, Mode: 0o1777}})
	}
	for at, from := range r.Files {
		add(at, entry{header: tar.Header{Typeflag: tar.TypeReg, Mode: 0o755}, from: from})
	}
	for at, text := range r.Texts {
		add(at, entry{header: tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}, text: text})
	}
	for at, target := range r.Links {
		add(at, entry{header: tar.Header{Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: target}})
	}
	out := make([]entry, 0, len(byName))
	for _, e := range byName {
		e.header.ModTime, e.header.Format = epoch(), tar.FormatPAX
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b entry) int { return cmp.Compare(a.header.Name, b.header.Name) })
	return out
}

func (e entry) write(w *tar.Writer) error {
	if e.from == "" {
		if err := w.WriteHeader(&e.header); err != nil {
			return err
		}
		_, err := io.WriteString(w, e.text)
		return err
	}
	f, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	e.header.Size = info.Size()
	if err := w.WriteHeader(&e.header); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// epoch is the time of all files in an image, so that builds are reproducible.
func epoch() time.Time { return time.Unix(0, 0).UTC() }
