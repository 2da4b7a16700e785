package iam

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// parseDocument parses what policies of every kind have around their statements: the
// version, the id and nothing else. parse loads one statement. Errors name the statement
// and the element.
func parseDocument[S any](document []byte, parse func(json.RawMessage) (S, error)) ([]S, error) {
	elements, err := object(document)
	if err != nil {
		return nil, err
	}
	var statements []S
	for _, name := range slices.Sorted(maps.Keys(elements)) {
		switch name {
		case "Version", "Id":
		case "Statement":
			if statements, err = parseStatements(elements[name], parse); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("element %s is not supported", name)
		}
	}
	if err := checkVersion(elements["Version"]); err != nil {
		return nil, err
	}
	if len(statements) == 0 {
		return nil, errors.New("element Statement: missing or empty")
	}
	return statements, nil
}

// parseStatements parses the element Statement, which is one statement or a list.
func parseStatements[S any](raw json.RawMessage, parse func(json.RawMessage) (S, error)) ([]S, error) {
	list := []json.RawMessage{raw}
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("[")) {
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, fmt.Errorf("element Statement: %w", err)
		}
	}
	var out []S
	for n, one := range list {
		s, err := parse(one)
		if err != nil {
			return nil, fmt.Errorf("statement %d: %w", n+1, err)
		}
		out = append(out, s)
	}
	return out, nil
}

// checkVersion refuses a document in another version of the policy language; raw is nil
// if it names none.
func checkVersion(raw json.RawMessage) error {
	var version string
	if raw != nil {
		if err := json.Unmarshal(raw, &version); err != nil {
			return fmt.Errorf("element Version: %w", err)
		}
	}
	if version != "2012-10-17" {
		return fmt.Errorf("element Version: %q, want \"2012-10-17\"", version)
	}
	return nil
}

// object decodes a JSON object. It refuses trailing data and duplicate keys, of which
// encoding/json would keep the last.
func object(raw []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	open, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if open != json.Delim('{') {
		return nil, fmt.Errorf("found %v, want a JSON object", open)
	}
	out := map[string]json.RawMessage{}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := key.(string)
		if !ok {
			return nil, fmt.Errorf("found %v, want a name", key)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, err
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("element %s: given twice", name)
		}
		out[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, errors.New("found more after the end of the document")
	}
	return out, nil
}

// plain decodes a string or a list of strings that IAM does not search for variables.
func plain(raw json.RawMessage) ([]string, error) {
	list, err := values(raw)
	for _, v := range list {
		if strings.Contains(v, "${") {
			return nil, fmt.Errorf("%q: a policy variable is not replaced here", v)
		}
	}
	return list, err
}

// values decodes a string or a list of strings.
func values(raw json.RawMessage) ([]string, error) {
	var list []string
	if err := json.Unmarshal(raw, &list); err != nil {
		var one string
		if json.Unmarshal(raw, &one) != nil {
			return nil, errors.New("want a string or a list of strings")
		}
		list = []string{one}
	}
	return list, nil
}
