package spec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPathsOfImageArchivesAreRelativeToTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lab.yaml")
	if err := os.WriteFile(path, []byte("images: [own.tar, /abs/other.tar]\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve()
	if want := []string{filepath.Join(dir, "own.tar"), "/abs/other.tar"}; err != nil || !slices.Equal(r.Images, want) {
		t.Errorf("%v, %v; want %v", r.Images, err, want)
	}
}

func TestAnImageArchiveWithoutAPathOrTwiceIsAProblem(t *testing.T) {
	for yaml, want := range map[string]string{
		`images: [""]`:           "images[0]: must be the path of an image archive",
		`images: [a.tar, a.tar]`: `images[1]: "a.tar": is also images[0]`,
	} {
		if _, err := resolveText(t, yaml); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", yaml, err, want)
		}
	}
}
