package osimage

import (
	"slices"
	"strings"
	"testing"
)

func TestEveryNameHasAnImage(t *testing.T) {
	if got, want := Names(), []Name{AL2023, Bare, Bottlerocket, Ubuntu}; !slices.Equal(got, want) {
		t.Fatalf("the images are %v, want %v", got, want)
	}
	for _, name := range append(Names(), "") {
		if _, ok := Lookup(name); !ok {
			t.Errorf("%q has no image", name)
		}
	}
	if _, ok := Lookup("al2"); ok {
		t.Error("al2 has an image")
	}
}

// A path with a slash at its beginning, or one that is bind-mounted from the machine, would
// change the machine.
func TestAnImageChangesOnlyItsOwnFiles(t *testing.T) {
	for _, name := range Names() {
		image, _ := Lookup(name)
		for path := range image.Files {
			if !strings.HasPrefix(path, "etc/") || strings.Contains(path, "..") {
				t.Errorf("%s: file %q is not below etc", name, path)
			}
		}
		for _, dir := range slices.Concat(image.Disk, image.Tmpfs) {
			if !strings.HasPrefix(dir, "etc/") {
				t.Errorf("%s: directory %q is not below etc", name, dir)
			}
		}
	}
}

// Kernel settings other than the network's belong to the machine.
func TestAnImageSetsOnlySettingsOfTheNetwork(t *testing.T) {
	for _, name := range Names() {
		image, _ := Lookup(name)
		for path, text := range image.Files {
			if !strings.HasPrefix(path, "etc/sysctl.d/") {
				continue
			}
			for line := range strings.Lines(text) {
				if !strings.HasPrefix(strings.TrimPrefix(line, "-"), "net.") {
					t.Errorf("%s: %s sets %s", name, path, line)
				}
			}
		}
	}
}
