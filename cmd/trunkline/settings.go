package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/trunkline/trunkline/internal/core/config"
)

// configured holds the flags for settings, which every daemon has.
type configured struct {
	file  filePath
	given map[string]string // by name, the settings that are in the command line
}

// bind declares the flag of the file, and one flag per setting of core/config.
func (c *configured) bind(f *pflag.FlagSet) {
	f.Var(&c.file, "config", "Configuration file, lines of 'name: value' in YAML.")
	c.given = map[string]string{}
	for _, s := range config.Settings() {
		doc := strings.ReplaceAll(s.Doc, "`", "'") // pflag takes a quoted word for the value's name
		if s.Default != "" {
			doc += " Default " + s.Default + "."
		}
		doc += " [" + strings.Join(append([]string{s.Env()}, s.Aliases...), ", ") + "]"
		f.Var(settingValue{s.Name, c.given}, s.Name, doc)
	}
}

// settingValue stores a flag's value among those that are given, unread: core/config reads
// the values of all sources.
type settingValue struct {
	name  string
	given map[string]string
}

func (s settingValue) Set(text string) error {
	s.given[s.name] = text
	return nil
}

func (s settingValue) String() string { return s.given[s.name] }

func (settingValue) Type() string { return "VALUE" }

func (c *configured) load() (config.Config, error) {
	src := config.Sources{Flags: c.given, Env: os.LookupEnv, FileName: string(c.file)}
	if c.file != "" {
		text, err := os.ReadFile(string(c.file))
		if err != nil {
			return config.Config{}, fmt.Errorf("read settings: %w", err)
		}
		var values map[string]any
		if err := yaml.UnmarshalStrict(text, &values); err != nil {
			return config.Config{}, fmt.Errorf("read settings from %s, lines of 'name: value' in YAML: %w", c.file, err)
		}
		if src.File, err = fileValues(values); err != nil {
			return config.Config{}, fmt.Errorf("read settings from %s:\n%w", c.file, err)
		}
	}
	cfg, err := config.Load(src)
	if err != nil {
		return config.Config{}, fmt.Errorf("settings:\n%w", err)
	}
	return cfg, nil
}

// fileValues returns a file's values in the form of flags. A list, such as one of
// CIDRs, becomes a comma-separated string.
func fileValues(values map[string]any) (map[string]string, error) {
	out := map[string]string{}
	var problems []error
	for _, k := range slices.Sorted(maps.Keys(values)) {
		text, err := fileValue(values[k])
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", k, err))
		}
		out[k] = text
	}
	return out, errors.Join(problems...)
}

func fileValue(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case []any:
		var parts []string
		for _, one := range v {
			text, ok := one.(string)
			if !ok {
				return "", fmt.Errorf("list item %v must be a string", one)
			}
			parts = append(parts, text)
		}
		return strings.Join(parts, ","), nil
	case nil:
		return "", errors.New("has no value; remove the line to use the default")
	}
	return "", errors.New("must not be a mapping: settings are not nested")
}
