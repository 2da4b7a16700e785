package laws

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	inCode     = regexp.MustCompile("(?s)```.*?```|`[^`]+`")
	ofProgram  = regexp.MustCompile(`(?:^|[\s/(` + "`" + `])trunkline ([a-z]\S*)(?: ([a-z]\S*))?`)
	ofMake     = regexp.MustCompile(`(?:^|[\s` + "`" + `])make ([a-z-]+)`)
	makeTarget = regexp.MustCompile(`(?m)^([a-z-]+):`)
	applied    = regexp.MustCompile(`(?:-k|--patch-file|file:/+|-f) ?((?:deploy|examples)/[\w./-]*\w)`)
)

// program are the commands and targets that documents can name.
type program struct {
	commands map[string][]string // subcommands by command; none for one that does something itself
	targets  []string
}

// unknown returns the commands, targets and files that a document names in its code, and that do
// not exist.
func (p program) unknown(base, document string) (out []string) {
	for _, code := range inCode.FindAllString(document, -1) {
		for _, m := range ofProgram.FindAllStringSubmatch(code, -1) {
			name := strings.TrimRight(m[1], "`),.;:")
			sub, known := p.commands[name]
			if !known || len(sub) > 0 && m[2] != "" && !slices.Contains(sub, strings.TrimRight(m[2], "`),.;:")) {
				out = append(out, strings.TrimSpace("trunkline "+name+" "+m[2]))
			}
		}
		for _, m := range ofMake.FindAllStringSubmatch(code, -1) {
			if !slices.Contains(p.targets, m[1]) {
				out = append(out, "make "+m[1])
			}
		}
		for _, m := range applied.FindAllStringSubmatch(code, -1) {
			if _, err := os.Stat(filepath.Join(base, m[1])); err != nil {
				out = append(out, m[1])
			}
		}
	}
	return out
}

// An operator copies commands from these documents. What exists is in the program's help, which a
// script test compares with the program, and in the Makefile.
func TestTheCommandsOfTheOperatorsDocumentsExist(t *testing.T) {
	base := root(t)
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(base, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	p := program{commands: map[string][]string{"completion": nil, "help": nil}}
	_, help, _ := strings.Cut(read("cmd/trunkline/testdata/script/help.txtar"), "-- program.txt --")
	help, _, _ = strings.Cut(help, "\n-- ")
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z][a-z0-9]*)(?: ([a-z][a-z-]*))?   `).FindAllStringSubmatch(help, -1) {
		p.commands[m[1]] = append(p.commands[m[1]], strings.Fields(m[2])...)
	}
	for _, m := range makeTarget.FindAllStringSubmatch(read("Makefile"), -1) {
		p.targets = append(p.targets, m[1])
	}
	if !slices.Contains(p.commands["show"], "pool") || p.commands["status"] != nil || !slices.Contains(p.targets, "image") {
		t.Fatalf("commands %q, targets %q: the check is not valid", p.commands, p.targets)
	}
	for _, name := range []string{
		"README.md", "docs/install.md", "docs/migrate.md", "docs/compat.md",
		"deploy/overlays/eks/kustomization.yaml", "deploy/overlays/eks-migration/kustomization.yaml", "deploy/overlays/no-cloud/kustomization.yaml",
	} {
		for _, unknown := range p.unknown(base, read(name)) {
			t.Errorf("%s names %s, which does not exist", name, unknown)
		}
	}
	for sample, want := range map[string]int{
		"`trunkline status --wait 2m`, `bin/trunkline show pool`, `make image`": 0,
		"```\nkubectl apply -k deploy/overlays/eks\n```":                        0,
		"`trunkline stat`": 1, "`/trunkline show pools`": 1, "`make images`": 1,
		"```\nkubectl apply -k deploy/overlays/none\n```": 1,
		"trunkline keeps addresses, and make none":        0,
	} {
		if got := p.unknown(base, sample); len(got) != want {
			t.Errorf("%s: %q, want %d", sample, got, want)
		}
	}
}
