// Package query is the server side of AWS's Query protocol: it decodes forms, encodes
// XML, verifies signatures, checks permissions, injects faults and logs every call.
//
// It contains no service. sim/ec2 and sim/sts pass it their tables of actions; the Go
// structs in those tables, with the tag "q" for the name on the wire, are the only
// description of a message and drive decoding, encoding and the tests that compare
// them with AWS's SDK.
//
// Source: EC2 API reference, "Query requests"; smithy.io, "AWS EC2 query
// protocol" and "AWS query protocol".
package query

import (
	"reflect"
	"strings"
)

// field is one member of a message: `q:"name[,required][,omitempty]"`.
type field struct {
	name      string
	required  bool // requests: MissingParameter without it
	omitempty bool // responses: no element when zero
	index     []int
}

// fieldsOf lists the members of a message in order. Embedded structs count as
// their members.
func fieldsOf(t reflect.Type) []field {
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		tag, ok := f.Tag.Lookup("q")
		if f.Anonymous && !ok {
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				out = append(out, inner)
			}
			continue
		}
		if !ok {
			panic("query: " + t.String() + "." + f.Name + " has no name on the wire")
		}
		name, options, _ := strings.Cut(tag, ",")
		out = append(out, field{
			name: name, index: f.Index,
			required:  strings.Contains(options, "required"),
			omitempty: strings.Contains(options, "omitempty"),
		})
	}
	return out
}
