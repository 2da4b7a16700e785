package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// operation is what a command does. Its flags are bound to its fields before it runs.
type operation interface {
	bind(*pflag.FlagSet)
	run(process) error
}

// daemons is the group of the commands that are not for people.
const daemons = "daemons"

// program returns the command line.
func program() *cobra.Command {
	root := group("trunkline", "Pods with real VPC addresses on Kubernetes.",
		statusCommand(), showCommands(), handoverCommand(), forgetCommand(), policyCommands(), explainCommands(), connectivityCommands(), ec2Commands(), versionCommand(),
		agentCommand(), initCommand(), uninstallCommand(), controllerCommand(), admissionCommand())
	root.Example = lines("trunkline status --wait 2m", "trunkline connectivity test", "source <(trunkline completion bash)   # complete commands and flags with Tab")
	asked := root.Flags().Bool("version", false, "Print the version and exit.")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *asked {
			return versionCmd{}.run(process{out: cmd.OutOrStdout()})
		}
		return cmd.Help()
	}
	root.AddGroup(&cobra.Group{ID: daemons, Title: "Commands that the manifests run:"})
	root.SetHelpFunc(printHelp)
	root.SetUsageFunc(func(cmd *cobra.Command) error { printHelp(cmd, nil); return nil })
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentPreRunE = setFromEnvironment
	root.CompletionOptions.HiddenDefaultCmd = true // not about pods; the example names it
	root.SilenceErrors, root.SilenceUsage = true, true
	return root
}

// leaf completes a command that does something.
func leaf(o operation, cmd *cobra.Command) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args = atMost(0)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return o.run(process{ctx: cmd.Context(), args: args, out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()})
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	o.bind(orderedFlags(cmd))
	return cmd
}

// group returns a command that only contains others.
func group(name, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: name + " <command>", DisableFlagsInUseLine: true, Short: short, Args: atMost(0),
		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return wrongUsage("expected one of %s", strings.Join(names(cmd.Commands()), ", "))
		},
	}
	orderedFlags(cmd)
	cmd.AddCommand(commands...)
	return cmd
}

func names(commands []*cobra.Command) (all []string) {
	for _, c := range commands {
		all = append(all, c.Name())
	}
	return all
}

// orderedFlags returns a command's flags, which --help lists in the order of their
// declaration.
func orderedFlags(cmd *cobra.Command) *pflag.FlagSet {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolP("help", "h", false, "Show context-sensitive help.")
	return flags
}

// atMost refuses more than n arguments, and suggests the commands that the first of them
// resembles.
func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= n {
			return nil
		}
		text := "unexpected argument " + args[n]
		if near := cmd.SuggestionsFor(args[n]); len(near) > 0 {
			text += fmt.Sprintf(", did you mean %s?", strings.Join(near, " or "))
		}
		return wrongUsage("%s", text)
	}
}

// lines returns the examples of a command, one per line.
func lines(examples ...string) string { return strings.Join(examples, "\n") }
