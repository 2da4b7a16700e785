package vm

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestDependenciesAreReadFromModinfo(t *testing.T) {
	for text, want := range map[string][]string{
		"name=veth\x00depends=\x00vermagic=6.1\x00":                            nil,
		"license=GPL\x00depends=nf_tables,x_tables\x00softdep=pre: crc32c\x00": {"nf_tables", "x_tables"},
		"": nil,
	} {
		if got := parseModinfo(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// kernelWith makes a package of a kernel with files and built-in modules.
func kernelWith(t *testing.T, files, builtin string) *modules {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "lib", "modules", "6.1.0-7-cloud-amd64")
	for path := range strings.FieldsSeq(files) {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte(builtin), 0o644); err != nil {
		t.Fatal(err)
	}
	m, err := readModules(root)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestAModuleThatCannotBeLoadedIsNamed(t *testing.T) {
	m := kernelWith(t, "kernel/net/odd-name.ko kernel/net/packed.ko.xz", "kernel/net/ipv6/ipv6.ko\n")
	if paths, err := m.order("ipv6"); len(paths) != 0 || err != nil {
		t.Errorf("a built-in module: %q, %v", paths, err)
	}
	if _, err := m.order("veth"); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "6.1.0-7-cloud-amd64 has no module veth") {
		t.Errorf("a missing module: %v", err)
	}
	if _, err := m.order("packed"); err == nil || !strings.Contains(err.Error(), "packed is compressed") {
		t.Errorf("a compressed module: %v", err)
	}
	if _, err := m.order("odd_name"); err == nil || !strings.Contains(err.Error(), "module odd_name") {
		t.Errorf("a file that is no module: %v", err)
	}
}
