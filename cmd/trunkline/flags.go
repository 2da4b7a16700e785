package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trunkline/trunkline/internal/app/cli"
	"github.com/trunkline/trunkline/internal/edge/kube"
)

// output is the flag for the output format.
type output struct{ format format }

func (o *output) bind(f *pflag.FlagSet) {
	o.format = "text"
	f.VarP(&o.format, "output", "o", "Output format: text or json.")
}

func (o *output) json() bool { return o.format == "json" }

// write prints a value as JSON, or calls text.
func (o *output) write(p process, value any, text func()) error {
	if o.json() {
		return cli.WriteJSON(p.out, value)
	}
	text()
	return nil
}

// format is a flag's value: text or json.
type format string

func (f *format) Set(text string) error {
	if text != "text" && text != "json" {
		return errors.New("must be text or json")
	}
	*f = format(text)
	return nil
}

func (f *format) String() string { return string(*f) }

func (*format) Type() string { return "format" }

// cluster holds the flags that select a cluster.
type cluster struct {
	kubeconfig filePath
	context    string
}

func (c *cluster) bind(f *pflag.FlagSet) {
	f.Var(&c.kubeconfig, "kubeconfig", "Kubeconfig file; else $KUBECONFIG, ~/.kube/config, or the pod's own account.")
	f.StringVar(&c.context, "context", "", "Context of the kubeconfig, by `name`.")
}

func (c *cluster) client() (*kube.Client, error) {
	return kube.NewClient(kube.Access{Kubeconfig: string(c.kubeconfig), Context: c.context, UserAgent: "trunkline/" + version})
}

// filePath is a flag's value that names a file. It becomes absolute, and ~/ the home
// directory: manifests and --flag=~/file pass it without a shell that would expand it.
type filePath string

func (p *filePath) Set(text string) error {
	if text == "" {
		*p = ""
		return nil
	}
	if rest, inHome := strings.CutPrefix(text, "~/"); inHome {
		home, err := os.UserHomeDir()
		if err != nil {
			return err
		}
		text = filepath.Join(home, rest)
	}
	path, err := filepath.Abs(text)
	*p = filePath(path)
	return err
}

func (p *filePath) String() string { return string(*p) }

func (*filePath) Type() string { return "file" }

// variable is the annotation of a flag that names its environment variable.
const variable = "environment variable"

// orVariable makes an environment variable set a flag that the command line does not.
func orVariable(f *pflag.FlagSet, flag, name string) {
	set := f.Lookup(flag)
	set.Usage += " ($" + name + ")"
	set.Annotations = map[string][]string{variable: {name}}
}

// setFromEnvironment sets the flags of a command that have an environment variable and
// are not in the command line.
func setFromEnvironment(cmd *cobra.Command, _ []string) (err error) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		for _, name := range f.Annotations[variable] {
			text, found := os.LookupEnv(name)
			if !found || f.Changed {
				continue
			}
			if f.Value.Type() == "bool" {
				text = yesOrNo(text)
			}
			if invalid := f.Value.Set(text); invalid != nil {
				err = errors.Join(err, fmt.Errorf("--%s: %q from $%s: %w", f.Name, text, name, invalid))
			}
		}
	})
	if err != nil {
		return usageError{err}
	}
	return nil
}

// yesOrNo translates yes and no, which manifests may say, to what the flag reads.
func yesOrNo(text string) string {
	switch text = strings.ToLower(text); text {
	case "yes":
		return "true"
	case "no":
		return "false"
	}
	return text
}
