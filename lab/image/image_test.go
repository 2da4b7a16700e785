package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/trunkline/trunkline/lab/cache"
)

func sample(t *testing.T) Recipe {
	t.Helper()
	from := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(from, []byte("#!binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Recipe{
		Files: map[string]string{"/app/run": from}, Links: map[string]string{"/bin/ls": "/app/run"},
		Dirs: []string{"/tmp"}, Entrypoint: []string{"/app/run"}, Cmd: []string{"serve"}, User: "7:7",
	}
}

func TestAnArchiveHasTheImageUnderEveryReference(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	refs := []string{"trunkline.dev/x:1", "trunkline.dev/x:dev"}
	if err := sample(t).Write(path, refs...); err != nil {
		t.Fatal(err)
	}
	for _, text := range refs {
		tag, err := name.NewTag(text)
		if err != nil {
			t.Fatal(err)
		}
		img, err := tarball.ImageFromPath(path, &tag)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := config.Config; got.User != "7:7" || !slices.Equal(got.Entrypoint, []string{"/app/run"}) || config.OS != "linux" {
			t.Errorf("%s: %+v", text, got)
		}
		layers, err := img.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		content, err := layers[0].Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{
			"app/ drwxr-xr-x", "app/run -rwxr-xr-x #!binary", "bin/ drwxr-xr-x",
			"bin/ls Lrwxrwxrwx /app/run", "tmp/ dtrwxrwxrwx",
		}, listing(t, content)); diff != "" {
			t.Errorf("layer (-want +got):\n%s", diff)
		}
	}
}

func listing(t *testing.T, r io.Reader) []string {
	t.Helper()
	var out []string
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(epoch()) || h.Uid != 0 {
			t.Errorf("%s: time %s, uid %d", h.Name, h.ModTime, h.Uid)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, strings.TrimSpace(h.Name+" "+h.FileInfo().Mode().String()+" "+h.Linkname+string(text)))
	}
}

func TestBuildsAreReproducible(t *testing.T) {
	dir, r := t.TempDir(), sample(t)
	var first []byte
	for _, file := range []string{"a", "b", "c"} {
		path := filepath.Join(dir, file)
		if err := r.Write(path, "trunkline.dev/x:1", "trunkline.dev/x:dev"); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = got
		}
		if !bytes.Equal(first, got) {
			t.Fatal("two builds gave different archives")
		}
	}
}

func TestAnInvalidReferenceIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.tar")
	if err := sample(t).Write(path, "Trunkline:dev"); err == nil || !strings.Contains(err.Error(), `"Trunkline:dev"`) {
		t.Errorf("Write = %v", err)
	}
	if err := sample(t).Write(path); err == nil {
		t.Error("an image without a reference was written")
	}
}

func TestTheLabsImagesAreBuiltOnceAndTaggedWithTheirVersion(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	for _, file := range []string{program, filepath.Join(dir, "loopback"), filepath.Join(dir, "portmap")} {
		if err := os.WriteFile(file, []byte("x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	store, err := cache.Open(dir, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	set := cache.Set{
		Version: "dev-abc", CoreDNS: program, Trunkline: program, Plugin: program, Reference: dir, Workload: program, Pause: program,
		Keys: map[string]string{cache.Product: "abc", cache.Programs: "def", cache.CoreDNS: "ghi"},
	}
	first, err := ForLab(t.Context(), store, set)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"trunkline.dev/trunkline:dev-abc", "trunkline.dev/trunkline:dev"}; !slices.Equal(first.Trunkline.Refs, want) {
		t.Errorf("references %v, want %v", first.Trunkline.Refs, want)
	}
	second, err := ForLab(t.Context(), failing{store}, set)
	if err != nil {
		t.Fatalf("an image was built again: %v", err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the second result differs:\n%s", diff)
	}
	set.Keys[cache.Product], set.Version = "new", "dev-new"
	if _, err := ForLab(t.Context(), failing{store}, set); err == nil {
		t.Error("no new image for another build of the product")
	}
}

// failing is a store that fails instead of building.
type failing struct{ Store }

func (f failing) Derive(ctx context.Context, name, key string, _ func(string) error) (string, error) {
	return f.Store.Derive(ctx, name, key, func(string) error { return errors.New("not in the store") })
}
