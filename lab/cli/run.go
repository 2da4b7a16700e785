package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/daemon"
	labnode "github.com/trunkline/trunkline/lab/node"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/world"
)

// debianAWS is the path of Debian's aws, the tested version. The PATH may contain
// another one.
const debianAWS = "/usr/bin/aws"

type execCmd struct {
	Node    string   `arg:"" help:"Node by its name (node1), Kubernetes name or instance ID."`
	Command []string `arg:"" optional:"" passthrough:"" help:"Command to run. Default: a shell."`
}

func (c *execCmd) Run(s *session) error {
	st, err := s.selectedStatus()
	if err != nil {
		return err
	}
	n, err := node(st, c.Node)
	if err != nil {
		return err
	}
	if n.PID == 0 {
		return fmt.Errorf("run a command in %s: the node is %s, not running", n.Name, n.State)
	}
	command := c.Command
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	if len(command) == 0 {
		command = []string{"/bin/sh"}
	}
	return execProgram(append(labnode.EnterArgs(n.PID), command...), nil)
}

// orHelp prints the CLI's help if args is --help and no lab exists to print the program's
// own.
func (s *session) orHelp(args []string, err error) error {
	if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
		return s.usage()
	}
	return err
}

type kubectlCmd struct {
	Args []string `arg:"" optional:"" passthrough:"all"`
}

func (c *kubectlCmd) Run(s *session) error {
	r, err := s.serving()
	if err != nil {
		return s.orHelp(c.Args, err)
	}
	return execProgram(append([]string{r.Lab.Parts.Kube, "kubectl"}, c.Args...), r.kubernetes())
}

type productCmd struct {
	Args []string `arg:"" optional:"" passthrough:"all"`
}

func (c *productCmd) Run(s *session) error {
	r, err := s.serving()
	if err != nil {
		return s.orHelp(c.Args, err)
	}
	return execProgram(append([]string{r.Product}, c.Args...), r.product())
}

type awsCmd struct {
	Args []string `arg:"" optional:"" passthrough:"all"`
}

func (c *awsCmd) Run(s *session) error {
	r, err := s.running()
	if err != nil {
		return s.orHelp(c.Args, err)
	}
	at := r.status.Endpoints
	if at.EC2 == "" {
		return fmt.Errorf("lab %s has no EC2 API yet: %s", r.status.Name, reason(r.status))
	}
	if _, err := os.Stat(debianAWS); err != nil {
		return fmt.Errorf("run aws: %w; install the Debian package awscli", err)
	}
	return execProgram(append([]string{debianAWS, "--endpoint-url", at.EC2}, c.Args...), map[string]string{
		"AWS_SHARED_CREDENTIALS_FILE": at.Credentials,
		"AWS_DEFAULT_REGION":          r.Lab.World.Region,
		"AWS_PAGER":                   "",
		"AWS_EC2_METADATA_DISABLED":   "true",
	})
}

// running is a running lab: its record and its status.
type running struct {
	record
	status daemon.Status
}

// selectedStatus returns the status of the lab that the command line selects.
func (s *session) selectedStatus() (daemon.Status, error) {
	lab, err := s.lab()
	if err != nil {
		return daemon.Status{}, err
	}
	return s.labs.status(s.ctx, lab)
}

func (s *session) running() (running, error) {
	st, err := s.selectedStatus()
	if err != nil {
		return running{}, err
	}
	r, err := s.labs.load(st.Name)
	return running{r, st}, err
}

// serving returns the selected lab, or an error if its API server is not up.
func (s *session) serving() (running, error) {
	r, err := s.running()
	if err == nil && r.status.Endpoints.Kubeconfig == "" {
		err = fmt.Errorf("lab %s has no API server yet: %s", r.status.Name, reason(r.status))
	}
	return r, err
}

// kubernetes returns the environment of clients of the lab's API server. kubectl's cache
// is in the lab's state directory instead of the user's home.
func (r running) kubernetes() map[string]string {
	return map[string]string{
		"KUBECONFIG":   r.status.Endpoints.Kubeconfig,
		"KUBECACHEDIR": filepath.Join(r.status.StateDir, "kubectl"),
	}
}

// product returns the environment of trunkline, with the lab's image and hosts for the
// connectivity test.
func (r running) product() map[string]string {
	env := r.kubernetes()
	env["TRUNKLINE_TEST_IMAGE"] = r.Workload
	env["TRUNKLINE_TEST_EXTERNAL_NAME"] = "ec2." + r.Lab.World.Region + ".amazonaws.com"
	if r.Lab.NoCloud && len(r.status.Nodes) > 0 { // the resolver knows no names of AWS's services
		env["TRUNKLINE_TEST_EXTERNAL_NAME"] = vpc.PrivateDNSName(r.status.Nodes[0].Address, r.Lab.World.Region)
	}
	if r.Lab.World.VPC.InternetGateway {
		env["TRUNKLINE_TEST_OUTSIDE"] = world.OutsideAddress
	}
	if clients, database := r.groupID(spec.GroupClients), r.groupID(spec.GroupDatabase); r.Lab.PodGroups != "" && clients != "" && database != "" {
		env["TRUNKLINE_TEST_CLIENT_GROUP"], env["TRUNKLINE_TEST_SERVER_GROUP"] = clients, database
	}
	return env
}

// groupID returns the id that EC2 gave to a security group of the lab's file, which the seed
// determines; empty if the file has no such group.
func (r running) groupID(name string) string {
	account, err := cloud.New(r.Lab.World, cloud.Options{})
	if err != nil {
		return "" // the lab runs, so that its file is valid
	}
	for id, g := range account.State().Groups {
		if g.Name == name {
			return string(id)
		}
	}
	return ""
}

// withEnv returns this process's environment with some variables replaced.
func withEnv(env map[string]string) []string {
	out := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, ours := env[name]
		return ours
	})
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	return out
}

// execProgram replaces this process with a program, which then has the terminal, the
// signals and the exit code.
func execProgram(argv []string, env map[string]string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("run %s: %w", argv[0], err)
	}
	return fmt.Errorf("run %s: %w", path, syscall.Exec(path, argv, withEnv(env)))
}

// node finds a node by its name, Kubernetes name or instance ID.
func node(st daemon.Status, name string) (daemon.NodeStatus, error) {
	var names []string
	for _, n := range st.Nodes {
		if name == n.Name || name == n.KubeName || name == string(n.InstanceID) {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return daemon.NodeStatus{}, fmt.Errorf("lab %s has no node %q; its nodes are %s", st.Name, name, strings.Join(names, ", "))
}
