package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/trunkline/trunkline/lab/image"
)

// ownImages reads the archives of lab.yaml. A reference of the lab's own images, or in two
// archives, would name another image than one of them says.
func ownImages(paths []string) (out []image.Archive, err error) {
	taken := map[string]string{}
	var wrong []error
	for i, path := range paths {
		field := fmt.Sprintf("images[%d]: %q", i, path)
		a, err := image.Open(path)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", field, err))
			continue
		}
		for _, ref := range a.Refs {
			if first, ok := taken[ref]; ok {
				wrong = append(wrong, fmt.Errorf("%s: has %s, which is also in %s", field, ref, first))
			}
			if strings.HasPrefix(ref, image.Registry) {
				wrong = append(wrong, fmt.Errorf("%s: has %s; names below %s are those of the lab's own images", field, ref, image.Registry))
			}
			taken[ref] = fmt.Sprintf("images[%d]", i)
		}
		out = append(out, a)
	}
	if len(wrong) > 0 {
		return nil, refused(fmt.Errorf("invalid lab:\n%w", errors.Join(wrong...)))
	}
	return out, nil
}
