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

// Settings returns every setting, in the order of the documentation: programs
// make their flags from it.
func Settings() []Setting { return settings() }

// Describe returns every setting with the value c has and where it comes from.
func (c Config) Describe() []Row {
	var rows []Row
	for _, s := range settings() {
		rows = append(rows, Row{s, s.get(c), c.origins[s.Name]})
	}
	return rows
}

// Markdown is docs/config.md.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Configuration

Generated from internal/core/config by ` + "`go generate ./internal/core/config`" + `; do not edit.

Precedence: flag, environment, file, default. ` + "`trunkline show config`" + ` prints what a
program runs with and where each value comes from. A value that makes no sense is
refused at start, with its name and source.

| setting (flag, file key) | environment | AWS's name | default | |
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
			doc += " A bare number is in " + s.Unit + "."
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", code(s.Name), code(s.Env()), strings.Join(aliases, ", "), code(s.Default), doc)
	}
	b.WriteString("\n## AWS's switches that are refused\n\nThey ask for what this version cannot do; ignoring them would surprise later.\n\n| environment | value | |\n|---|---|---|\n")
	for _, u := range unsupported() {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", u.env, u.refuse, u.what)
	}
	return b.String()
}
