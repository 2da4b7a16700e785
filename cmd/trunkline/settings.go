package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
	"sigs.k8s.io/yaml"

	"github.com/trunkline/trunkline/internal/core/config"
)

// settingFlags returns one flag per setting of core/config, as a struct type built at
// run time: kong reads flags from struct tags.
func settingFlags() kong.Plugins {
	var fields []reflect.StructField
	for i, s := range config.Settings() {
		doc := s.Doc
		if s.Default != "" {
			doc += " Default " + s.Default + "."
		}
		doc += " [" + strings.Join(append([]string{s.Env()}, s.Aliases...), ", ") + "]"
		// kong interpolates ${…} and splits tags at quotes.
		doc = strings.NewReplacer(`"`, "'", "`", "'", "$", "$$").Replace(doc)
		fields = append(fields, reflect.StructField{
			Name: fmt.Sprintf("S%d", i),
			Type: reflect.TypeFor[*string](),
			Tag:  reflect.StructTag(fmt.Sprintf("name:%q help:%q placeholder:\"VALUE\"", s.Name, doc)),
		})
	}
	return kong.Plugins{reflect.New(reflect.StructOf(fields)).Interface()}
}

// givenFlags returns the settings that were given as flags.
func givenFlags(plugins kong.Plugins) map[string]string {
	out := map[string]string{}
	v := reflect.ValueOf(plugins[0]).Elem()
	for i, s := range config.Settings() {
		if p, ok := v.Field(i).Interface().(*string); ok && p != nil {
			out[s.Name] = *p
		}
	}
	return out
}

// configured holds the flags for settings, which every daemon has.
type configured struct {
	Config   string       `help:"Configuration file, lines of 'name: value' in YAML." type:"path" placeholder:"FILE"`
	Settings kong.Plugins `embed:""`
}

func (c configured) load() (config.Config, error) {
	src := config.Sources{Flags: givenFlags(c.Settings), Env: os.LookupEnv, FileName: c.Config}
	if c.Config != "" {
		text, err := os.ReadFile(c.Config)
		if err != nil {
			return config.Config{}, fmt.Errorf("read settings: %w", err)
		}
		var values map[string]any
		if err := yaml.UnmarshalStrict(text, &values); err != nil {
			return config.Config{}, fmt.Errorf("read settings from %s, lines of 'name: value' in YAML: %w", c.Config, err)
		}
		if src.File, err = fileValues(values); err != nil {
			return config.Config{}, fmt.Errorf("read settings from %s:\n%w", c.Config, err)
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
