//go:build netns

package scenario

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// kernel is the network of the node as text: links, rules, routes, neighbours and
// nftables, with the names of the script.
func (s *scenario) kernel() (string, error) {
	links, err := s.links()
	if err != nil {
		return "", err
	}
	names := s.names()
	for _, l := range links {
		if mac := l.Attrs().HardwareAddr.String(); mac != "" {
			if _, known := names[mac]; !known {
				names[mac] = "<mac " + strings.Trim(names[l.Attrs().Name], "<>") + ">"
			}
		}
	}
	var out strings.Builder
	section(&out, "links", describe(links), names)
	for _, part := range []struct{ title, command string }{
		{"rules", "ip -4 rule"},
		{"routes", "ip -4 route show table all"},
		{"neighbours", "ip -4 neigh show nud permanent"},
	} {
		text, err := s.onNode(strings.Fields(part.command)...)
		if err != nil {
			return "", err
		}
		section(&out, part.title, strings.Split(strings.TrimSpace(text), "\n"), names)
	}
	ruleset, err := s.ruleset()
	if err != nil {
		return "", err
	}
	section(&out, "sets", sets(ruleset), names)
	return strings.TrimSuffix(out.String(), "\n"), nil
}

// chains is the node's nftables with its rules, and without the elements of sets. Tables
// are sorted: nft lists them in the order of their creation.
func (s *scenario) chains() (string, error) {
	text, err := s.ruleset()
	if err != nil {
		return "", err
	}
	text = s.names().replace(strings.ReplaceAll(list.ReplaceAllString(text, ""), "\t", "  "))
	tables := strings.SplitAfter(text, "\n}\n")
	slices.Sort(tables)
	return strings.Join(tables, ""), nil
}

func (s *scenario) ruleset() (string, error) { return s.onNode("nft", "-s", "list", "ruleset") }

func (s *scenario) links() (links []netlink.Link, err error) {
	err = s.NS.Run(func() (err error) { links, err = netlink.LinkList(); return err })
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

func describe(links []netlink.Link) (lines []string) {
	for _, l := range links {
		a := l.Attrs()
		line := fmt.Sprintf("%s %s mtu %d group %d flags %s", a.Name, a.HardwareAddr, a.MTU, a.Group, a.Flags)
		if a.Alias != "" {
			line += " alias " + a.Alias
		}
		lines = append(lines, line)
	}
	return lines
}

// section writes sorted lines. Routes of the local table are the kernel's own.
func section(out *strings.Builder, title string, lines []string, names names) {
	fmt.Fprintf(out, "# %s\n", title)
	var kept []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if line == "" || strings.Contains(line, " table local ") {
			continue
		}
		kept = append(kept, names.replace(strings.Join(strings.Fields(line), " ")))
	}
	slices.Sort(kept)
	for _, line := range kept {
		fmt.Fprintln(out, line)
	}
	out.WriteString("\n")
}

// What nft prints: the elements of a set, and the beginning of a set or map.
var (
	list     = regexp.MustCompile(`\n\s*elements = \{([^}]*)\}`)
	setStart = regexp.MustCompile(`(?m)^\s+(?:set|map) `)
)

// sets returns a line for each element of each set, and one for a set without elements.
func sets(ruleset string) (lines []string) {
	for part := range strings.SplitSeq(ruleset, "table ") {
		table, rest, _ := strings.Cut(part, " {")
		for _, set := range setStart.Split(rest, -1)[1:] {
			name, body, _ := strings.Cut(set, " {")
			body, _, _ = strings.Cut(body, "chain ")
			found := list.FindStringSubmatch(body)
			if found == nil {
				lines = append(lines, table+" "+name+" is empty")
				continue
			}
			for element := range strings.SplitSeq(found[1], ",") {
				lines = append(lines, table+" "+name+": "+element)
			}
		}
	}
	return lines
}

func (s *scenario) onNode(args ...string) (string, error) { return run(s.Context(), s.NS.Name, args) }

// run executes a program in a namespace and returns its output.
func run(ctx context.Context, namespace string, args []string) (string, error) {
	out, err := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", namespace}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s in %s: %w: %s", strings.Join(args, " "), namespace, err, out)
	}
	return string(out), nil
}
