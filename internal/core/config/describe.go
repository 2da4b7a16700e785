package config

import (
	"fmt"
	"strings"
)

// Row is one setting with its value, as `trunkline show config` prints it.
type Row struct {
	Setting
	Value  string
	Origin string
}

// Settings returns every setting, in the order of the documentation. Programs build
// their flags from it.
func Settings() []Setting { return settings() }

// Describe returns every setting with its value in c and the source of the value.
func (c Config) Describe() []Row {
	var rows []Row
	for _, s := range settings() {
		rows = append(rows, Row{s, s.get(c), c.origins[s.Name]})
	}
	return rows
}

// Markdown returns the text of docs/config.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Configuration

Generated from internal/core/config by ` + "`go generate ./internal/core/config`" + `; do not edit.

Precedence: flag, environment, file, default. ` + "`trunkline show config`" + ` prints what a
program runs with and the source of each value. An invalid value stops the program at
start; the error names the setting, the value, its source and the reason.

| setting (flag, file key) | environment | AWS's name | default | meaning |
|---|---|---|---|---|
`)
	code := func(s string) string {
		if s == "" {
			return ""
		}
		return "`" + s + "`"
	}
	for _, s := range settings() {
		var aliases []string
		for _, a := range s.Aliases {
			aliases = append(aliases, code(a))
		}
		doc := s.Doc
		if s.Unit != "" {
			doc += " A number without a unit is in " + s.Unit + "."
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", code(s.Name), code(s.Env()), strings.Join(aliases, ", "), code(s.Default), doc)
	}
	b.WriteString("\n## AWS's variables that are refused\n\nThese values enable features that this version does not have; the program refuses to\nstart rather than run without them.\n\n| environment | refused value | feature |\n|---|---|---|\n")
	for _, u := range unsupported() {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", u.env, u.refuse, u.feature)
	}
	b.WriteString("\n## AWS's variables that are not served\n\nThe program starts with them, and has no such setting. While one has another value than those\nlisted, the log at the start, `trunkline show config` and `trunkline status` say so.\n\n| environment | values that change nothing | otherwise |\n|---|---|---|\n")
	for _, n := range notServed() {
		var fits []string
		for _, v := range n.fits {
			fits = append(fits, code(v))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", n.env, strings.Join(fits, ", "), n.means)
	}
	return b.String()
}
