package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxFile bounds lab.yaml, in bytes.
const maxFile = 1 << 20

// Load reads and parses a lab.yaml.
func Load(path string) (Spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Spec{}, err
	}
	s, err := Parse(data)
	if err != nil {
		return Spec{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Parse reads lab.yaml strictly: a field it does not know, or one written twice,
// is an error that names the field by its path. It does not fill in defaults.
func Parse(data []byte) (Spec, error) {
	var s Spec
	if len(data) > maxFile {
		return s, fmt.Errorf("%d bytes; a lab.yaml has at most %d", len(data), maxFile)
	}
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return s, errors.New(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
	}
	strict, err := kjson.UnmarshalStrict(asJSON, &s)
	if err != nil {
		return Spec{}, errors.New(plainTypeError(err))
	}
	if len(strict) > 0 {
		return Spec{}, errors.Join(strict...)
	}
	return s, nil
}

// plainTypeError says "nodes.type: a number, want text" where the decoder speaks
// of Go types.
func plainTypeError(err error) string {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err.Error()
	}
	field := wrong.Field
	if field == "" {
		field = "the file"
	}
	return fmt.Sprintf("%s: %s, want %s", field, valueInWords(wrong.Value), kindInWords(wrong.Type.Kind().String()))
}

func valueInWords(value string) string {
	switch value {
	case "string":
		return "text"
	case "array":
		return "a list"
	case "object":
		return "a mapping"
	case "bool":
		return "true or false"
	}
	return value // "number", "number -1"
}

func kindInWords(kind string) string {
	switch kind {
	case "string":
		return "text"
	case "struct", "map":
		return "a mapping"
	case "slice", "array":
		return "a list"
	case "bool":
		return "true or false"
	case "ptr":
		return "a value of its own kind"
	}
	return "a whole number that is not negative"
}

// Marshal writes s as YAML.
func (s Spec) Marshal() ([]byte, error) { return yaml.Marshal(s) }
