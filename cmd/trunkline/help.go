package main

import (
	"fmt"
	"go/doc/comment"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// printHelp prints a command's texts, its flags and the commands that it contains. It is
// in place of cobra's templates: executing a template calls methods by name, for which
// the linker would keep every method of the program (docs/performance.md, "Memory").
func printHelp(cmd *cobra.Command, _ []string) {
	w := cmd.OutOrStdout()
	width := helpWidth(w)
	fmt.Fprintf(w, "Usage: %s\n\n%s", cmd.UseLine(), wrapped(cmd.Short, 0, width))
	if cmd.Long != "" {
		fmt.Fprintf(w, "\n%s", wrapped(cmd.Long, 0, width))
	}
	if cmd.HasExample() {
		fmt.Fprint(w, "\nExamples:\n")
		for example := range strings.Lines(cmd.Example) {
			fmt.Fprint(w, "  ", strings.TrimSuffix(example, "\n"), "\n")
		}
	}
	fmt.Fprintf(w, "\nFlags:\n%s", cmd.Flags().FlagUsagesWrapped(width))
	if !cmd.HasAvailableSubCommands() {
		return
	}
	printCommands(w, "Commands:", inGroup(cmd, ""), width)
	for _, g := range cmd.Groups() {
		printCommands(w, g.Title, inGroup(cmd, g.ID), width)
	}
	fmt.Fprintf(w, "\nRun \"%s <command> --help\" for more information on a command.\n", cmd.CommandPath())
}

// inGroup returns the commands of a group that do something, below cmd.
func inGroup(cmd *cobra.Command, id string) (all []*cobra.Command) {
	for _, c := range cmd.Commands() {
		switch {
		case !c.IsAvailableCommand() || c.GroupID != id:
		case c.HasAvailableSubCommands():
			all = append(all, inGroup(c, "")...)
		default:
			all = append(all, c)
		}
	}
	return all
}

// printCommands prints the path below the program of each command, and beside it what it
// does.
func printCommands(w io.Writer, title string, commands []*cobra.Command, width int) {
	if len(commands) == 0 {
		return
	}
	path := func(c *cobra.Command) string {
		return "  " + strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
	}
	column := 0
	for _, c := range commands {
		column = max(column, len(path(c))+3)
	}
	fmt.Fprintf(w, "\n%s\n", title)
	for _, c := range commands {
		fmt.Fprintf(w, "%-*s%s", column, path(c), wrapped(c.Short, column, width)[column:])
	}
}

// wrapped returns a text in lines that end at a width, indented. Paragraphs are separated
// by empty lines; lines that are indented themselves stay as they are.
func wrapped(text string, indent, width int) string {
	var parser comment.Parser
	printer := comment.Printer{TextPrefix: strings.Repeat(" ", indent), TextCodePrefix: "    ", TextWidth: width - indent}
	return string(printer.Text(parser.Parse(text)))
}

// helpWidth is the width of a terminal, as far as long lines are readable, else 80.
func helpWidth(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return min(max(columns, 60), 110)
		}
	}
	return 80
}
