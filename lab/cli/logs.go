package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

type logsCmd struct {
	What   string `arg:"" optional:"" help:"NODE, NODE/PROGRAM, or a program of the control plane. Default: list the logs."`
	Follow bool   `short:"f" help:"Print new lines as they are written."`
	output
}

func (c *logsCmd) Run(s *session) error {
	lab, err := s.lab()
	if err != nil {
		return err
	}
	stateDir := s.labs.stateDir(lab)
	logs, err := findLogs(stateDir)
	if err != nil {
		return err
	}
	if len(logs) == 0 {
		return s.labs.notRunning(lab)
	}
	if c.What == "" {
		return c.list(s, logs)
	}
	if s.console.json {
		return coded{fmt.Errorf("logs %s -o json: only the list of logs has a JSON form; omit -o json", c.What), ExitUsage}
	}
	chosen := slices.DeleteFunc(slices.Clone(logs), func(l logFile) bool { return !l.matches(c.What) })
	if len(chosen) == 0 {
		return fmt.Errorf("lab %s has no log %q; `%s logs` lists them", lab, c.What, s.labs.command(lab))
	}
	if c.Follow && len(chosen) > 1 {
		return coded{fmt.Errorf("%q selects %d logs; follow one of %s", c.What, len(chosen), logNames(chosen)), ExitUsage}
	}
	return printLogs(s.ctx, s.console.out, chosen, c.Follow)
}

func (c *logsCmd) list(s *session, logs []logFile) error {
	if s.console.json {
		type line struct {
			Name string `json:"name"`
			Path string `json:"path"`
		}
		lines := make([]line, len(logs))
		for i, l := range logs {
			lines[i] = line(l)
		}
		return s.console.writeJSON(lines)
	}
	for _, l := range logs {
		fmt.Fprintln(s.console.out, l.Name)
	}
	return nil
}

// logFile is a log with its short name, such as node1/kubelet or kube-apiserver.
type logFile struct{ Name, Path string }

func (l logFile) matches(what string) bool {
	return l.Name == what || strings.HasPrefix(l.Name, what+"/") || filepath.Base(l.Name) == what
}

func logNames(logs []logFile) string {
	var names []string
	for _, l := range logs {
		names = append(names, l.Name)
	}
	return strings.Join(names, ", ")
}

// findLogs lists every log file of a lab.
func findLogs(stateDir string) ([]logFile, error) {
	var out []logFile
	err := filepath.WalkDir(stateDir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"disk", "root", "etcd", "bin"}, d.Name()) {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() || filepath.Ext(path) != ".log" {
			return nil
		}
		relative, err := filepath.Rel(stateDir, path)
		out = append(out, logFile{Name: logName(relative), Path: path})
		return err
	})
	slices.SortFunc(out, func(a, b logFile) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// logName returns the short name of a log: node1/kubelet for nodes/node1/log/kubelet.log.
func logName(relative string) string {
	parts := slices.DeleteFunc(strings.Split(strings.TrimSuffix(relative, ".log"), "/"), func(p string) bool {
		return p == "log" || p == "nodes" || p == "control-plane" || p == "controlplane"
	})
	return strings.Join(parts, "/")
}
