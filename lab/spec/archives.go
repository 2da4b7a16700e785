package spec

import (
	"fmt"
	"path/filepath"
	"slices"
)

// locateImages makes the paths of image archives independent of the working directory. dir
// is the directory of lab.yaml.
func (s *Spec) locateImages(dir string) {
	for i, path := range s.Images {
		if path != "" && !filepath.IsAbs(path) {
			s.Images[i] = filepath.Join(dir, path)
		}
	}
}

// archives checks the paths of image archives; lab/cli reads the files.
func archives(p *problems, paths []string) []string {
	for i, path := range paths {
		field := fmt.Sprintf("images[%d]", i)
		if path == "" {
			p.add(field, "", "must be the path of an image archive, as `docker save -o` writes it")
		}
		if first := slices.Index(paths, path); first < i {
			p.add(field, path, "is also images[%d]", first)
		}
	}
	return paths
}
