package testns

import (
	"fmt"
	"os"
	"path/filepath"
)

// TempDir makes a directory for large files of a test, below os.TempDir. The caller removes
// it; a call of any process removes those of test processes that have ended. A killed process
// leaves the directories of testing.T.TempDir.
func TempDir(label string) (dir string, err error) {
	removeStaleDirectories()
	return os.MkdirTemp("", fmt.Sprintf("tl-%s-%s-", Lab(), label))
}

func removeStaleDirectories() {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), "tl-t*"))
	if err != nil {
		return
	}
	for _, dir := range found {
		if o, ok := ownerOf(filepath.Base(dir)); ok && o.ended() {
			_ = os.RemoveAll(dir)
		}
	}
}
