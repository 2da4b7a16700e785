package query

import (
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/trunkline/trunkline/sim/cloud"
)

// Limits of one request.
const (
	maxDepth = 6     // dots in a parameter name, plus one
	maxIndex = 10000 // N of Name.N
)

// node is a parameter with the parameters below it.
type node struct {
	path     string // the whole name, for errors
	value    string
	set      bool
	children map[string]*node
}

// Decode decodes a form into the struct that into points to. A parameter without a
// field is refused with UnknownParameter, an invalid value with
// InvalidParameterValue, a missing required parameter with MissingParameter. Action
// and Version are handled by the server.
//
// A list is Name.1, Name.2, …; a structure Name.Field; both can be nested.
func Decode(form url.Values, into any) error {
	root, err := parse(form)
	if err != nil {
		return err
	}
	v := reflect.ValueOf(into).Elem()
	if err := decodeStruct(root, v); err != nil {
		return err
	}
	return require(root, v.Type())
}

// require refuses a request without a required parameter. It runs after unknown
// parameters were refused, because a misspelt name explains a missing one.
func require(n *node, t reflect.Type) error {
	switch t.Kind() {
	case reflect.Pointer:
		return require(n, t.Elem())
	case reflect.Slice:
		for _, name := range sortedKeys(n.children) {
			if err := require(n.children[name], t.Elem()); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			child := n.children[f.name]
			switch {
			case child != nil:
				if err := require(child, t.FieldByIndex(f.index).Type); err != nil {
					return err
				}
			case f.required:
				return cloud.MissingParameter(join(n.path, f.name))
			}
		}
	default: // a plain value has no parameters below it
	}
	return nil
}

func parse(form url.Values) (*node, error) {
	root := &node{children: map[string]*node{}}
	for _, name := range sortedKeys(form) {
		if name == "Action" || name == "Version" {
			continue
		}
		if len(form[name]) > 1 {
			return nil, givenTwice(name)
		}
		parts := strings.Split(name, ".")
		if len(parts) > maxDepth {
			return nil, unknown(name)
		}
		at := root
		for n, part := range parts {
			next := at.children[part]
			if next == nil {
				next = &node{path: strings.Join(parts[:n+1], "."), children: map[string]*node{}}
				at.children[part] = next
			}
			at = next
		}
		at.value, at.set = form.Get(name), true
	}
	return root, nil
}

func givenTwice(name string) error {
	return cloud.Errorf("InvalidQueryParameter", "The parameter %s is given more than once", name)
}

func unknown(name string) error {
	return cloud.Errorf("UnknownParameter", "The parameter %s is not recognized", name)
}

func decodeStruct(n *node, v reflect.Value) error {
	claimed := map[string]bool{}
	for _, f := range fieldsOf(v.Type()) {
		claimed[f.name] = true
		child := n.children[f.name]
		if child == nil {
			continue
		}
		if err := decodeValue(child, v.FieldByIndex(f.index)); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(n.children) {
		if !claimed[name] {
			return unknown(n.children[name].first())
		}
	}
	if n.set {
		return unknown(n.path) // a structure has no value of its own
	}
	return nil
}

// first returns the name of the first parameter at or below n that has a value.
func (n *node) first() string {
	for !n.set {
		n = n.children[sortedKeys(n.children)[0]]
	}
	return n.path
}

func decodeValue(n *node, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return decodeValue(n, v.Elem())
	case reflect.Struct:
		return decodeStruct(n, v)
	case reflect.Slice:
		return decodeList(n, v)
	default:
		return decodePlain(n, v)
	}
}

// decodePlain decodes a value without parameters below it.
func decodePlain(n *node, v reflect.Value) error {
	if len(n.children) > 0 {
		for _, name := range sortedKeys(n.children) {
			return unknown(n.children[name].first())
		}
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(n.value)
	case reflect.Bool:
		on, err := strconv.ParseBool(strings.ToLower(n.value))
		if err != nil {
			return cloud.InvalidParameter("Value (%s) for parameter %s is invalid. Expected a boolean.", n.value, n.path)
		}
		v.SetBool(on)
	case reflect.Int:
		i, err := strconv.ParseInt(n.value, 10, 32)
		if err != nil {
			return cloud.InvalidParameter("Value (%s) for parameter %s is invalid. Expected an integer.", n.value, n.path)
		}
		v.SetInt(i)
	default:
		panic("query: a request cannot hold a " + v.Type().String())
	}
	return nil
}

func decodeList(n *node, v reflect.Value) error {
	if n.set {
		return unknown(n.path)
	}
	indexes := make([]int, 0, len(n.children))
	for name, child := range n.children {
		i, err := strconv.Atoi(name)
		if err != nil || i < 1 || i > maxIndex || strconv.Itoa(i) != name {
			return unknown(child.first())
		}
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	v.Set(reflect.MakeSlice(v.Type(), len(indexes), len(indexes)))
	for at, i := range indexes {
		if err := decodeValue(n.children[strconv.Itoa(i)], v.Index(at)); err != nil {
			return err
		}
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
