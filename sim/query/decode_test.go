package query_test

import (
	"bytes"
	"errors"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/query"
)

type inner struct {
	Key    string   `q:"Key,required"`
	Values []string `q:"Value"`
}

type message struct {
	query.DryRun
	ID      string  `q:"Id,required"`
	Count   int     `q:"Count"`
	Maybe   *bool   `q:"Maybe"`
	Plain   []int   `q:"Plain"`
	Nested  []inner `q:"Nested"`
	Pointer *inner  `q:"Pointer"`
}

func decode(form string) (message, error) {
	values, err := url.ParseQuery(form)
	if err != nil {
		return message{}, err
	}
	var m message
	return m, query.Decode(values, &m)
}

func TestFormIsDecodedIntoAMessage(t *testing.T) {
	yes := true
	for form, want := range map[string]message{
		"Action=X&Version=Y&Id=a":  {ID: "a"},
		"Id=a&DryRun=true":         {ID: "a", DryRun: query.DryRun{DryRun: true}},
		"Id=a&Count=-3&Maybe=True": {ID: "a", Count: -3, Maybe: &yes},
		// Lists are ordered by number, not lexically.
		"Id=a&Plain.10=10&Plain.2=2":                           {ID: "a", Plain: []int{2, 10}},
		"Id=a&Nested.1.Key=k&Nested.1.Value.1=v&Nested.2.Key=": {ID: "a", Nested: []inner{{"k", []string{"v"}}, {}}},
		"Id=a&Pointer.Key=k":                                   {ID: "a", Pointer: &inner{Key: "k"}},
	} {
		got, err := decode(form)
		if err != nil {
			t.Errorf("%s: %v", form, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", form, diff)
		}
	}
}

func TestInvalidFormIsRefusedWithEC2sErrors(t *testing.T) {
	for form, want := range map[string]string{
		"":                          "MissingParameter: The request must contain the parameter Id",
		"Id=a&Colour=blue":          "UnknownParameter: The parameter Colour is not recognized",
		"Colour=blue":               "UnknownParameter: The parameter Colour is not recognized",
		"Id=a&Id.1=b":               "UnknownParameter: The parameter Id.1 is not recognized",
		"Id=a&Id=b":                 "InvalidQueryParameter: The parameter Id is given more than once",
		"Id=a&Plain=1":              "UnknownParameter: The parameter Plain is not recognized",
		"Id=a&Plain.0=1":            "UnknownParameter: The parameter Plain.0 is not recognized",
		"Id=a&Plain.01=1":           "UnknownParameter: The parameter Plain.01 is not recognized",
		"Id=a&Plain.x=1":            "UnknownParameter: The parameter Plain.x is not recognized",
		"Id=a&Plain.99999999999=1":  "UnknownParameter: The parameter Plain.99999999999 is not recognized",
		"Id=a&Plain.1.2=1":          "UnknownParameter: The parameter Plain.1.2 is not recognized",
		"Id=a&Nested.1=1":           "UnknownParameter: The parameter Nested.1 is not recognized",
		"Id=a&Nested.1.Value.1=v":   "MissingParameter: The request must contain the parameter Nested.1.Key",
		"Id=a&Nested.1.Colour=v":    "UnknownParameter: The parameter Nested.1.Colour is not recognized",
		"Id=a&Count=many":           "InvalidParameterValue: Value (many) for parameter Count is invalid. Expected an integer.",
		"Id=a&Count=4294967296":     "InvalidParameterValue: Value (4294967296) for parameter Count is invalid. Expected an integer.",
		"Id=a&DryRun=perhaps":       "InvalidParameterValue: Value (perhaps) for parameter DryRun is invalid. Expected a boolean.",
		"Id=a&a.b.c.d.e.f.g.h=1":    "UnknownParameter: The parameter a.b.c.d.e.f.g.h is not recognized",
		"Id=a&Nested.1.Key=k&.=1":   "UnknownParameter: The parameter . is not recognized",
		"Id=a&Nested.1.Key=k&Id.=1": "UnknownParameter: The parameter Id. is not recognized",
	} {
		_, err := decode(form)
		if err == nil || err.Error() != want {
			t.Errorf("%s\ngot  %v\nwant %s", form, err, want)
		}
	}
}

// For any input the decoder returns a message or one of EC2's errors, and a message
// has no more values than the form.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"Id=a", "Id=a&Nested.1.Key=k&Nested.1.Value.1=v", "Id=a&Plain.1=1&Plain.3=3", "Id=a&Id.1=x", "Id=a&....=1", "Id=%00&Maybe=false",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, form string) {
		values, err := url.ParseQuery(form)
		if err != nil {
			return
		}
		var m message
		if err := query.Decode(values, &m); err != nil {
			var e *cloud.Error
			if !errors.As(err, &e) || e.Code == "" || e.Status != 400 {
				t.Fatalf("%q: %v is not an error of EC2", form, err)
			}
			return
		}
		parameters := 0
		for name := range values {
			if name != "Action" && name != "Version" {
				parameters++
			}
		}
		if leaves := count(reflect.ValueOf(m)); leaves < parameters-zeroes(values) {
			t.Fatalf("%q: %d parameters became %d values", form, parameters, leaves)
		}
	})
}

// count returns how many non-zero values a message holds.
func count(v reflect.Value) int {
	n := 0
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			n = count(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += count(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			n += count(v.Index(i))
		}
	default:
		if !v.IsZero() {
			n = 1
		}
	}
	return n
}

// zeroes returns how many parameters have a value that decodes to zero.
func zeroes(form url.Values) int {
	n := 0
	for _, v := range form {
		text := strings.ToLower(strings.Trim(v[0], "+-0"))
		if text == "" || text == "false" || text == "f" {
			n++
		}
	}
	return n
}

func TestResponsesAreEscaped(t *testing.T) {
	type answer struct {
		Text string   `q:"text"`
		List []string `q:"list"`
		None []string `q:"none"`
		Gone string   `q:"gone,omitempty"`
	}
	var b bytes.Buffer
	if err := query.Encode(&b, answer{Text: `<a & "b">`, List: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	want := `<text>&lt;a &amp; &#34;b&#34;&gt;</text><list><item>x</item></list><none></none>`
	if b.String() != want {
		t.Errorf("got  %s\nwant %s", &b, want)
	}
}
