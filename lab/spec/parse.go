package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxFile is the maximum size of lab.yaml, in bytes.
const maxFile = 1 << 20

// Load reads and parses a lab.yaml, and reads the policies that it names.
func Load(path string) (Spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Spec{}, err
	}
	s, err := Parse(data)
	if err == nil {
		err = s.readPolicies(filepath.Dir(path))
		s.locateImages(filepath.Dir(path))
	}
	if err != nil {
		return Spec{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Parse parses lab.yaml strictly: an unknown or duplicate field is an error that names
// the field's path. It does not set defaults.
func Parse(data []byte) (Spec, error) {
	var s Spec
	if len(data) > maxFile {
		return s, fmt.Errorf("%d bytes; a lab.yaml may have at most %d", len(data), maxFile)
	}
	if documentBreak.Match(bytes.TrimPrefix(data, []byte("---\n"))) {
		return s, errors.New("two YAML documents (a line \"---\"); a lab.yaml has one: move the other to its own file")
	}
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return s, errors.New(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
	}
	strict, err := kjson.UnmarshalStrict(asJSON, &s)
	if err != nil {
		return Spec{}, locate(asJSON, err)
	}
	if len(strict) > 0 {
		return Spec{}, errors.Join(strict...)
	}
	return s, nil
}

// documentBreak matches the separator of YAML documents. The decoder would ignore the
// second document.
var documentBreak = regexp.MustCompile(`(?m)^---(\s|$)`)

// locate returns a decoding error with the path of the invalid field. The decoder's own
// error names "nodes.labels" for nodes[1].labels.a, and no path for types with their own
// decoding. locate reduces the document, one key or entry at a time, to the smallest one
// that still fails.
func locate(doc []byte, decodeErr error) error {
	var whole any
	numbers := json.NewDecoder(bytes.NewReader(doc))
	numbers.UseNumber() // a float would not hold every seed
	if err := numbers.Decode(&whole); err != nil {
		return err
	}
	decode := func(v any) error {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return kjson.UnmarshalCaseSensitivePreserveInts(text, new(Spec))
	}
	path, err := narrow(whole, decode)
	if err == nil {
		err = decodeErr
	}
	if path == "" {
		path = "the file"
	}
	return fmt.Errorf("%s: %s", strings.TrimPrefix(path, "."), plain(err))
}

// narrow returns the path of the innermost value that decode rejects, and its error. For
// an inner value, decode gets a document that holds only this value at its place.
func narrow(v any, decode func(any) error) (path string, err error) {
	err = decode(v)
	if err == nil {
		return "", nil
	}
	inner := func(step string, v any, place func(any) any) bool {
		rest, innerErr := narrow(v, func(v any) error { return decode(place(v)) })
		if innerErr != nil {
			path, err = step+rest, innerErr
		}
		return innerErr != nil
	}
	switch v := v.(type) {
	case map[string]any:
		if decode(map[string]any{}) != nil {
			break // any mapping is invalid here
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if inner("."+key, v[key], func(v any) any { return map[string]any{key: v} }) {
				break
			}
		}
	case []any:
		if decode([]any{}) != nil {
			break
		}
		for i, entry := range v {
			if inner(fmt.Sprintf("[%d]", i), entry, func(v any) any { return []any{v} }) {
				break
			}
		}
	}
	return path, err
}

// plain replaces a decoder's error in terms of Go types by one such as "number, want
// text".
func plain(err error) string {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err.Error()
	}
	return fmt.Sprintf("%s, want %s", valueInWords(wrong.Value), kindInWords(wrong.Type.Kind().String()))
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
		return "a value of another type"
	}
	return "a non-negative whole number"
}

// Marshal writes s as YAML.
func (s Spec) Marshal() ([]byte, error) { return yaml.Marshal(s) }
