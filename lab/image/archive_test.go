package image

import (
	"archive/tar"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pack writes a tar file with the given files.
func pack(t *testing.T, files map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for name, text := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnArchivesReferencesAreRead(t *testing.T) {
	index := `{"schemaVersion":2,"manifests":[
		{"annotations":{"io.containerd.image.name":"docker.io/library/b:1","org.opencontainers.image.ref.name":"1"}},
		{"annotations":{"org.opencontainers.image.ref.name":"registry.example/c:2"}}]}`
	for what, tc := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"docker": {map[string]string{"manifest.json": `[{"Config":"x","RepoTags":["a:2","a:1"],"Layers":[]}]`}, []string{"a:1", "a:2"}},
		"OCI":    {map[string]string{"index.json": index}, []string{"docker.io/library/b:1", "registry.example/c:2"}},
		"both":   {map[string]string{"index.json": index, "manifest.json": `[]`}, []string{"docker.io/library/b:1", "registry.example/c:2"}},
	} {
		a, err := Open(pack(t, tc.files))
		if err != nil || !slices.Equal(a.Refs, tc.want) {
			t.Errorf("%s: %v, %v; want %v", what, a.Refs, err, tc.want)
		}
	}
}

// What Write writes, Open reads.
func TestAnArchiveOfTheLabIsRead(t *testing.T) {
	dir := t.TempDir()
	program, path := filepath.Join(dir, "program"), filepath.Join(dir, "image.tar")
	if err := os.WriteFile(program, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (Recipe{Files: map[string]string{"/program": program}}).Write(path, "own.example/program:1"); err != nil {
		t.Fatal(err)
	}
	if a, err := Open(path); err != nil || !slices.Equal(a.Refs, []string{"own.example/program:1"}) || a.Path != path {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestAFileThatIsNoUsableArchiveIsRefusedWithTheReason(t *testing.T) {
	dir := t.TempDir()
	text := func(content string) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for what, tc := range map[string]struct{ path, want string }{
		"absent":            {filepath.Join(dir, "absent.tar"), "no such file"},
		"a folder":          {dir, "must be a file"},
		"gzip":              {text("\x1f\x8b\x08\x00rest"), "decompress it with gunzip"},
		"zstd":              {text("\x28\xb5\x2f\xfdrest"), "decompress it with unzstd"},
		"not a tar file":    {text(strings.Repeat("x", 2048)), "not a tar file"},
		"an incomplete one": {text(strings.Repeat("x", 100)), "not a tar file, or an incomplete one"},
		"an empty one":      {text(""), "neither manifest.json (docker) nor index.json (OCI)"},
		"another tar file":  {pack(t, map[string]string{"hello": "x"}), "is no image archive"},
		"without a name":    {pack(t, map[string]string{"index.json": `{"manifests":[{}]}`}), "no image with a reference"},
		"a tag only":        {pack(t, map[string]string{"index.json": `{"manifests":[{"annotations":{"org.opencontainers.image.ref.name":"BAD NAME"}}]}`}), "invalid reference"},
		"not JSON":          {pack(t, map[string]string{"manifest.json": "{"}), "read manifest.json"},
		"a huge list":       {pack(t, map[string]string{"manifest.json": strings.Repeat(" ", maxManifest+1)}), "at most 4194304 are allowed"},
	} {
		if a, err := Open(tc.path); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, %v; want an error with %q", what, a, err, tc.want)
		}
	}
}
