package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/trunkline/trunkline/lab/daemon"
	labnode "github.com/trunkline/trunkline/lab/node"
)

// debianAWS is the aws command that is known to work: another one on the PATH
// may be another version.
const debianAWS = "/usr/bin/aws"

type execCmd struct {
	Node    string   `arg:"" help:"Node by its name (node1), Kubernetes name or instance id."`
	Command []string `arg:"" optional:"" passthrough:"" help:"What to run; a shell when left out."`
}

func (c *execCmd) Run(s *session) error {
	lab, err := s.lab()
	if err != nil {
		return err
	}
	st, err := s.status(lab)
	if err != nil {
		return err
	}
	n, err := node(st, c.Node)
	if err != nil {
		return err
	}
	if n.PID == 0 {
		return fmt.Errorf("run a command in %s: the node is %s", n.Name, n.State)
	}
	command := c.Command
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		command = []string{"/bin/sh"}
	}
	return become(append(labnode.EnterArgs(n.PID), command...), nil)
}

type kubectlCmd struct {
	Args []string `arg:"" optional:"" passthrough:"all"`
}

func (c *kubectlCmd) Run(s *session) error {
	lab, err := s.lab()
	if err != nil {
		return err
	}
	r, err := s.load(lab)
	if err != nil {
		return err
	}
	st, err := s.status(lab)
	if err != nil {
		return err
	}
	if st.Endpoints.Kubeconfig == "" {
		return fmt.Errorf("lab %s has no API server yet: %s", lab, reason(st))
	}
	return become(append([]string{r.Lab.Parts.Kube, "kubectl"}, c.Args...), kubectlEnv(st))
}

// kubectlEnv speaks to the lab, and keeps what kubectl caches with the lab's state
// instead of the user's home.
func kubectlEnv(st daemon.Status) map[string]string {
	return map[string]string{
		"KUBECONFIG":   st.Endpoints.Kubeconfig,
		"KUBECACHEDIR": filepath.Join(st.StateDir, "kubectl"),
	}
}

type awsCmd struct {
	Args []string `arg:"" optional:"" passthrough:"all"`
}

func (c *awsCmd) Run(s *session) error {
	lab, err := s.lab()
	if err != nil {
		return err
	}
	r, err := s.load(lab)
	if err != nil {
		return err
	}
	st, err := s.status(lab)
	if err != nil {
		return err
	}
	if st.Endpoints.EC2 == "" {
		return fmt.Errorf("lab %s has no EC2 API yet: %s", lab, reason(st))
	}
	if _, err := os.Stat(debianAWS); err != nil {
		return fmt.Errorf("run aws: %w; install the Debian package awscli", err)
	}
	return become(append([]string{debianAWS, "--endpoint-url", st.Endpoints.EC2}, c.Args...), map[string]string{
		"AWS_SHARED_CREDENTIALS_FILE": st.Endpoints.Credentials,
		"AWS_DEFAULT_REGION":          r.Lab.World.Region,
		"AWS_PAGER":                   "",
		"AWS_EC2_METADATA_DISABLED":   "true",
	})
}

// become replaces this process by a program, so that terminal, signals and exit
// code are its own.
func become(argv []string, env map[string]string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("run %s: %w", argv[0], err)
	}
	environ := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ours := env[name]
		return ours
	})
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	return fmt.Errorf("run %s: %w", path, syscall.Exec(path, argv, environ))
}

type logsCmd struct {
	What   string `arg:"" optional:"" help:"NODE, NODE/PROGRAM, or a program of the control plane; left out, a list."`
	Follow bool   `short:"f" help:"Go on as the log grows."`
}

func (c *logsCmd) Run(s *session) error {
	lab, err := s.lab()
	if err != nil {
		return err
	}
	stateDir := s.stateDir(lab)
	logs, err := findLogs(stateDir)
	if err != nil {
		return err
	}
	if len(logs) == 0 {
		return s.notRunning(lab)
	}
	if c.What == "" {
		for _, l := range logs {
			fmt.Fprintln(s.out, l.name)
		}
		return nil
	}
	chosen := slices.DeleteFunc(slices.Clone(logs), func(l logFile) bool { return !l.matches(c.What) })
	if len(chosen) == 0 {
		return fmt.Errorf("lab %s has no log %q; `trunkline-lab logs` lists them", lab, c.What)
	}
	if c.Follow && len(chosen) > 1 {
		return coded{fmt.Errorf("%q is %d logs; follow one of %s", c.What, len(chosen), logNames(chosen)), ExitUsage}
	}
	return s.printLogs(chosen, c.Follow)
}

// logFile is a log and what people call it: node1/kubelet, kube-apiserver.
type logFile struct{ name, path string }

func (l logFile) matches(what string) bool {
	return l.name == what || strings.HasPrefix(l.name, what+"/") || filepath.Base(l.name) == what
}

func logNames(logs []logFile) string {
	var names []string
	for _, l := range logs {
		names = append(names, l.name)
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
		out = append(out, logFile{name: logName(relative), path: path})
		return err
	})
	slices.SortFunc(out, func(a, b logFile) int { return strings.Compare(a.name, b.name) })
	return out, err
}

// logName makes node1/kubelet of nodes/node1/log/kubelet.log.
func logName(relative string) string {
	parts := slices.DeleteFunc(strings.Split(strings.TrimSuffix(relative, ".log"), "/"), func(p string) bool {
		return p == "log" || p == "nodes" || p == "control-plane" || p == "controlplane"
	})
	return strings.Join(parts, "/")
}
