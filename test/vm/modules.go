package vm

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// modules are those of one kernel. Each file names the modules that it depends on, so that no
// index as depmod(8) makes it is necessary.
type modules struct {
	dir     string            // such as …/lib/modules/6.1.0-56-cloud-amd64
	files   map[string]string // path below dir, by the module's name
	builtin map[string]bool   // modules that are part of the kernel
}

// readModules lists the modules below the root of a kernel's package.
func readModules(kernel string) (*modules, error) {
	dirs, err := filepath.Glob(filepath.Join(kernel, "lib", "modules", "*"))
	if err != nil || len(dirs) != 1 {
		return nil, fmt.Errorf("%s has modules of %d kernels, want 1: %w", kernel, len(dirs), errors.Join(err, os.ErrInvalid))
	}
	m := &modules{dir: dirs[0], files: map[string]string{}, builtin: map[string]bool{}}
	builtin, err := os.ReadFile(filepath.Join(m.dir, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(builtin)); lines.Scan(); {
		m.builtin[moduleName(lines.Text())] = true
	}
	return m, filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(d.Name(), ".ko") {
			return err
		}
		rel, err := filepath.Rel(m.dir, path)
		m.files[moduleName(path)] = rel
		return err
	})
}

// moduleName is the name of the module in a file; - and _ are the same to modprobe(8).
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// order returns the paths of modules and of those that they depend on, each after its
// dependencies.
func (m *modules) order(names ...string) (paths []string, err error) {
	for _, name := range names {
		if paths, err = m.add(paths, moduleName(name), nil); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

func (m *modules) add(paths []string, name string, dependents []string) ([]string, error) {
	path, ok := m.files[name]
	switch {
	case !ok && m.builtin[name]:
		return paths, nil
	case !ok:
		return nil, fmt.Errorf("kernel %s has no module %s: %w", filepath.Base(m.dir), name, os.ErrNotExist)
	case slices.Contains(paths, path):
		return paths, nil
	case slices.Contains(dependents, name):
		return nil, fmt.Errorf("module %s depends on itself", name)
	case !strings.HasSuffix(path, ".ko"):
		return nil, fmt.Errorf("module %s is compressed (%s): only those of Debian 12 can be read", name, filepath.Base(path))
	}
	depends, err := dependencies(filepath.Join(m.dir, path))
	if err != nil {
		return nil, fmt.Errorf("read the dependencies of module %s: %w", name, err)
	}
	for _, d := range depends {
		if paths, err = m.add(paths, moduleName(d), append(dependents, name)); err != nil {
			return nil, err
		}
	}
	return append(paths, path), nil
}

// dependencies reads those of a module from its section .modinfo.
func dependencies(path string) (names []string, err error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("it has no section .modinfo")
	}
	text, err := section.Data()
	if err != nil {
		return nil, err
	}
	return parseModinfo(string(text)), nil
}

// parseModinfo reads the entries of .modinfo, such as depends=a,b, which end with a zero. Others
// than depends are not dependencies: softdep has names of features, which modprobe(8) looks up.
func parseModinfo(text string) (names []string) {
	for entry := range strings.SplitSeq(text, "\x00") {
		if value, ok := strings.CutPrefix(entry, "depends="); ok {
			names = append(names, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		}
	}
	return names
}
