package podeni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// What is wrong with a text.
var (
	// ErrTruncated: the text ends before the JSON value does.
	ErrTruncated = errors.New("truncated annotation")
	// ErrSyntax: the text is not a JSON list of objects.
	ErrSyntax = errors.New("malformed annotation")
	// ErrField: a field is named twice, or has a value of another type.
	ErrField = errors.New("invalid field")
	// ErrNoEntry: the list is empty.
	ErrNoEntry = errors.New("annotation without a branch")
	// ErrIncomplete: an entry lacks a field that it must have.
	ErrIncomplete = errors.New("incomplete entry")
	// ErrValue: an id, MAC, address, range or VLAN that no branch can have.
	ErrValue = errors.New("invalid value")
	// ErrTwice: two entries have the same interface, MAC, address or VLAN.
	ErrTwice = errors.New("value of two entries")
)

// Bounds of a text: the API server takes 256 KiB of annotations, and a trunk has 120 branches.
const (
	maxText    = 256 << 10
	maxEntries = 120
)

var (
	eniID       = regexp.MustCompile(`^eni-([0-9a-f]{8}|[0-9a-f]{17})$`)
	association = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
)

// Decode reads the annotation's text. Fields that later versions of AWS's controller may add are
// ignored. A field with another spelling of a known name is not: AWS's plugin, which ignores case,
// would read it.
func Decode(text string) ([]Entry, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("%d bytes: %w", len(text), ErrSyntax)
	}
	if err := syntax(text); err != nil {
		return nil, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	entries := make([]Entry, 0, len(list))
	for i, raw := range list {
		e, err := decodeEntry(raw)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		entries = append(entries, e)
	}
	if err := check(entries); err != nil {
		return nil, err
	}
	return entries, nil
}

// syntax distinguishes a truncated text from a malformed one by where a byte that no JSON text
// has is refused: after a truncated one, not within it.
func syntax(text string) error {
	if json.Valid([]byte(text)) {
		return nil
	}
	var raw json.RawMessage
	err := json.Unmarshal([]byte(text+"\x00"), &raw)
	if at := (*json.SyntaxError)(nil); errors.As(err, &at) && at.Offset > int64(len(text)) {
		return fmt.Errorf("%d bytes: %w", len(text), ErrTruncated)
	}
	return fmt.Errorf("%w: %w", ErrSyntax, err)
}

func decodeEntry(raw json.RawMessage) (e Entry, err error) {
	fields, err := fieldsOf(raw)
	if err != nil {
		return Entry{}, err
	}
	r := reader{fields: fields}
	e.ENI = vpc.ENIID(r.text("eniId", true))
	if mac := r.text("ifAddress", true); mac != "" {
		if e.MAC, err = vpc.ParseMAC(mac); err != nil || strings.Count(mac, ":") != 5 {
			r.fail("ifAddress %q: %w", mac, ErrValue)
		}
	}
	e.IPv4, e.IPv6 = r.address("privateIp"), r.address("ipv6Addr")
	e.Subnet4, e.Subnet6 = r.subnet("subnetCidr"), r.subnet("subnetV6Cidr")
	e.Association = r.text("associationID", false)
	if value, ok := fields["vlanId"]; !ok {
		r.fail("vlanId is missing: %w", ErrIncomplete)
	} else if json.Unmarshal(value, &e.VLAN) != nil || string(value) == "null" {
		r.fail("vlanId %s: it is no whole number: %w", value, ErrField)
	}
	return e, r.err
}

// names are the fields of an entry, with two more spellings of AWS's: vlanID is that of its
// daemon's type (PodENIData of amazon-vpc-cni-k8s), AssociationId that of texts in the tests
// of its controller.
func names() map[string]string {
	return map[string]string{
		"eniId": "eniId", "ifAddress": "ifAddress", "privateIp": "privateIp", "ipv6Addr": "ipv6Addr", "vlanId": "vlanId", "vlanID": "vlanId",
		"subnetCidr": "subnetCidr", "subnetV6Cidr": "subnetV6Cidr", "associationID": "associationID", "AssociationId": "associationID",
	}
}

// fieldsOf returns the values of an object by the names of the fields that Trunkline reads.
func fieldsOf(raw json.RawMessage) (map[string]json.RawMessage, error) {
	known, seen := names(), map[string]bool{}
	fields := map[string]json.RawMessage{}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return nil, fmt.Errorf("it is no object: %w", ErrSyntax)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSyntax, err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrSyntax, err)
		}
		name := key.(string) // a key of an object is one
		folded := strings.ToLower(name)
		if seen[folded] {
			return nil, fmt.Errorf("field %q stands twice: %w", name, ErrField)
		}
		seen[folded] = true
		if field, ok := known[name]; ok {
			fields[field] = value
			continue
		}
		for field := range known {
			if strings.EqualFold(field, name) {
				return nil, fmt.Errorf("field %q: it must be written %q: %w", name, known[field], ErrField)
			}
		}
	}
	return fields, nil
}

// reader reads the fields of one entry and keeps the first error.
type reader struct {
	fields map[string]json.RawMessage
	err    error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *reader) text(name string, required bool) string {
	value, ok := r.fields[name]
	if !ok {
		if required {
			r.fail("%s is missing: %w", name, ErrIncomplete)
		}
		return ""
	}
	var s *string
	if err := json.Unmarshal(value, &s); err != nil || s == nil {
		r.fail("%s %s: it is no string: %w", name, value, ErrField)
		return ""
	}
	if *s == "" && required {
		r.fail("%s is empty: %w", name, ErrIncomplete)
	}
	return *s
}

func (r *reader) address(name string) netip.Addr {
	s := r.text(name, false)
	if s == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		r.fail("%s %q: %w", name, s, ErrValue)
	}
	return a
}

func (r *reader) subnet(name string) netip.Prefix {
	s := r.text(name, false)
	if s == "" {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		r.fail("%s %q: %w", name, s, ErrValue)
	}
	return p
}
