package conflist

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/cniconf"
	"github.com/trunkline/trunkline/internal/core/config"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// keptSuffix is appended to the name of a configuration of the AWS VPC CNI that ours
// replaced. The runtime loads no file of that extension.
const keptSuffix = ".before-trunkline"

// reasonReplaced is the reason of the event about that.
const reasonReplaced = "AWSConfigurationReplaced"

// replace keeps the content of a file of the AWS VPC CNI aside and replaces it by ours, by
// rename: at no moment does the runtime find no configuration, or one that cannot be read.
// Plugins that other programs had chained to AWS's stay in the chain.
func (f *File) replace(file cniconf.File, c chain) error {
	from := filepath.Join(f.cfg.CNIConfDir, file.Name)
	original, err := os.ReadFile(from)
	if err == nil {
		err = atomicfile.Write(kept(f.cfg, file.Name), original, 0o644)
	}
	if err == nil {
		err = f.put(file, c)
	}
	if err != nil {
		return fmt.Errorf("replace %s of the AWS VPC CNI: %w", file.Name, err)
	}
	message := fmt.Sprintf("the container runtime used %s of the AWS VPC CNI; Trunkline replaced it and kept its content in %s. No pod of aws-node must come to this node; delete the DaemonSet only after the last node has moved (docs/migrate.md)",
		from, kept(f.cfg, file.Name))
	dropped := slices.DeleteFunc(file.Chained(), func(name string) bool { return !slices.Contains(c.gone, name) })
	if len(dropped) > 0 {
		message += "; no longer called for new pods, because the node does not have them: " + strings.Join(dropped, ", ")
	}
	f.Log.Warn("configuration of the AWS VPC CNI replaced", "path", from, "kept", kept(f.cfg, file.Name), "dropped", dropped)
	f.Events.NodeWarning(reasonReplaced, message)
	return nil
}

func kept(cfg config.Config, name string) string {
	return filepath.Join(cfg.CNIConfDir, name+keptSuffix)
}

// read reads the files that the runtime loads, sorted by name. A directory that does not
// exist has none.
func read(cfg config.Config) (files []cniconf.File, err error) {
	dir := cfg.CNIConfDir
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list configurations: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() || !cniconf.Loaded(e.Name()) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist) && e.Type().IsRegular():
			continue // removed since
		case err != nil:
			files = append(files, cniconf.Unreadable(e.Name(), "it cannot be read: "+err.Error()))
		default:
			file := cniconf.Parse(e.Name(), content)
			_, statErr := os.Stat(kept(cfg, file.Name))
			file.Kept = statErr == nil
			files = append(files, file)
		}
	}
	return files, nil
}

// ours are the names of our file and of those that it replaced, as far as they have our
// content; replaced are the names of all files that were kept.
func ours(cfg config.Config) (ours, replaced []string, err error) {
	files, err := read(cfg)
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		if file.Name == FileName || file.Owner == cniconf.Ours && file.Kept {
			ours = append(ours, file.Name)
		}
	}
	entries, err := os.ReadDir(cfg.CNIConfDir)
	if errors.Is(err, fs.ErrNotExist) {
		return ours, nil, nil
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), keptSuffix); ok {
			replaced = append(replaced, name)
		}
	}
	return ours, replaced, err
}

// RemoveLeftovers removes what an agent left that was killed while it wrote a file. No
// other process may be writing it.
func (f *File) RemoveLeftovers() error {
	_, replaced, err := ours(f.cfg)
	err = errors.Join(err, atomicfile.RemoveLeftovers(path(f.cfg)))
	for _, name := range replaced {
		err = errors.Join(err, atomicfile.RemoveLeftovers(filepath.Join(f.cfg.CNIConfDir, name)), atomicfile.RemoveLeftovers(kept(f.cfg, name)))
	}
	return err
}

// Remove takes our configuration away, on a stop that is meant to last: the runtime then
// reports that the node's network is not ready. daemon: AWS's daemon is on the node; its
// configuration, which it wrote once, at its start, is given back. Without it, what was kept is
// deleted: the daemon writes its own once it serves, and the runtime must not call its plugin
// before. A configuration that is not there is no error.
func Remove(cfg config.Config, daemon bool) error {
	var err error
	if daemon {
		err = giveBack(cfg)
	}
	names, replaced, readErr := ours(cfg)
	err = errors.Join(err, readErr)
	for _, name := range names {
		err = errors.Join(err, remove(filepath.Join(cfg.CNIConfDir, name)))
	}
	for _, name := range replaced { // after ours, which are recognised by it
		if err == nil {
			err = remove(kept(cfg, name))
		}
	}
	if err != nil {
		return fmt.Errorf("remove conflist: %w", err)
	}
	return nil
}

// giveBack restores the configurations of the AWS VPC CNI that ours replaced, by rename: the
// runtime finds one at every moment. One that AWS's daemon has written since stays, and what was
// kept of it is deleted.
func giveBack(cfg config.Config) error {
	_, replaced, err := ours(cfg)
	if err != nil || len(replaced) == 0 {
		return err
	}
	files, err := read(cfg)
	if err != nil {
		return err
	}
	for _, name := range replaced {
		var e error
		if now := cniconf.Named(files, name); now.Owner == cniconf.Ours || len(now.Plugins) == 0 {
			e = restore(cfg, name)
		}
		if e == nil {
			e = remove(kept(cfg, name))
		}
		err = errors.Join(err, e)
	}
	return err
}

// restore writes what was kept of a file.
func restore(cfg config.Config, name string) error {
	original, err := os.ReadFile(kept(cfg, name))
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(cfg.CNIConfDir, name), original, 0o644)
}

// remove deletes a file; one that is not there is no error.
func remove(at string) error {
	if err := os.Remove(at); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
