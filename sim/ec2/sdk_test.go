package ec2_test

import (
	"bytes"
	"context"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/query"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// whole sends requests in one piece. Without it the SDK can lose part of a long
// response; see internal/edge/ec2.
type whole struct{}

// RoundTrip implements http.RoundTripper.
func (whole) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	sent := r.WithContext(r.Context())
	sent.Body = io.NopCloser(bytes.NewReader(body))
	return http.DefaultTransport.RoundTrip(sent)
}

// client is the real SDK, pointed at url.
func client(url, id, secret, token string) *awsec2.Client {
	return awsec2.New(awsec2.Options{
		Region: "us-west-2", BaseEndpoint: aws.String(url),
		Credentials: credentials.NewStaticCredentialsProvider(id, secret, token),
		Retryer:     aws.NopRetryer{}, HTTPClient: &http.Client{Transport: whole{}},
	})
}

// invoke calls the SDK's method of an action.
func invoke(t *testing.T, c *awsec2.Client, action string, input reflect.Value) reflect.Value {
	t.Helper()
	out := reflect.ValueOf(c).MethodByName(action).Call([]reflect.Value{reflect.ValueOf(context.Background()), input})
	if err, _ := out[1].Interface().(error); err != nil {
		t.Fatalf("%s: the SDK returned: %v", action, err)
	}
	return out[0]
}

// inputOf makes the SDK's input of an action.
func inputOf(action string) reflect.Value {
	m, ok := reflect.TypeFor[*awsec2.Client]().MethodByName(action)
	if !ok {
		panic("the SDK has no action " + action)
	}
	return reflect.New(m.Type.In(2).Elem())
}

// leaf is one member of a message, by its path on the wire, with a value that no
// other member has.
type leaf struct {
	path  string
	value string
	bool  bool
}

// filler fills messages so that every leaf has a distinct value.
type filler struct {
	next   int
	leaves []leaf
	// only is the path of the one bool that is true, because bools cannot be
	// distinguished by value.
	only string
	tag  bool // the fields have "q" tags with names on the wire
}

func (f *filler) number() int { f.next++; return 1000 + f.next }

func (f *filler) fill(path string, v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Unix(1700000000+int64(f.number()), 0).UTC()
		f.leaves = append(f.leaves, leaf{path: path, value: x.Format(time.RFC3339)})
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(path, v.Elem())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			value := fmt.Sprintf("v%d", f.number())
			v.SetBytes([]byte(value))
			f.leaves = append(f.leaves, leaf{path: path, value: value})
			return
		}
		if v.Type().Elem().Kind() == reflect.Struct && v.Type().Elem().NumField() == 0 {
			return // a list that is always empty
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		f.fill(path+".item", v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("q"), ",")
			if !field.IsExported() {
				continue
			}
			if field.Anonymous {
				f.fill(path, v.Field(i))
				continue
			}
			if !f.tag {
				name = field.Name
			}
			f.fill(strings.TrimPrefix(path+"."+name, "."), v.Field(i))
		}
	case reflect.String:
		value := fmt.Sprintf("v%d", f.number())
		v.SetString(value)
		f.leaves = append(f.leaves, leaf{path: path, value: value})
	case reflect.Bool:
		v.SetBool(f.only == path)
		f.leaves = append(f.leaves, leaf{path: path, value: "true", bool: true})
	case reflect.Int, reflect.Int32, reflect.Int64:
		n := f.number()
		v.SetInt(int64(n))
		f.leaves = append(f.leaves, leaf{path: path, value: fmt.Sprint(n)})
	case reflect.Float64:
		v.SetFloat(float64(f.number()))
	default:
		panic(fmt.Sprintf("%s: cannot fill a %s", path, v.Type()))
	}
}

// find collects the paths in an SDK value that contain a value.
func find(v reflect.Value, path, value string, found *[]string) {
	if !v.IsValid() {
		return
	}
	if t, ok := v.Interface().(time.Time); ok {
		if t.UTC().Format(time.RFC3339) == value {
			*found = append(*found, path)
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			find(v.Elem(), path, value, found)
		}
	case reflect.Slice:
		for i := range v.Len() {
			find(v.Index(i), path+"[]", value, found)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "ResultMetadata" {
				find(v.Field(i), strings.TrimPrefix(path+"."+f.Name, "."), value, found)
			}
		}
	default:
		if fmt.Sprint(v.Interface()) == value {
			*found = append(*found, path)
		}
	}
}

func table(t *testing.T) []query.Action {
	t.Helper()
	c, err := cloud.New(seeded(), cloud.Options{Instant: true})
	if err != nil {
		t.Fatal(err)
	}
	return ec2.Service(c).Actions
}

// Every member of our responses is sent with a distinct value and decoded by the real
// SDK; the golden file lists the SDK's field of each, and is reviewed against the API
// reference.
func TestSDKDecodesEveryMemberOfEveryResponse(t *testing.T) {
	var golden bytes.Buffer
	for _, action := range table(t) {
		fmt.Fprintf(&golden, "%s\n  %s\n", action.Name, action.Page)
		_, leaves := answer(t, action, "")
		for _, l := range leaves {
			only := ""
			if l.bool {
				only = l.path
			}
			out, _ := answer(t, action, only)
			var found []string
			find(out, "", l.value, &found)
			if len(found) != 1 {
				// The SDK drops "return" where its output has no field for it.
				if l.path == "return" && len(found) == 0 {
					continue
				}
				t.Errorf("%s: %s arrived in %v, want one place", action.Name, l.path, found)
				continue
			}
			fmt.Fprintf(&golden, "  %s -> %s\n", l.path, found[0])
		}
	}
	compareGolden(t, "answers.golden", golden.Bytes())
}

// answer fills every member of an action's response and returns what the SDK decodes.
func answer(t *testing.T, action query.Action, only string) (reflect.Value, []leaf) {
	t.Helper()
	message := reflect.New(reflect.TypeOf(action.Response))
	f := &filler{only: only, tag: true}
	f.fill("", message.Elem())
	var b bytes.Buffer
	b.WriteString(xml.Header + "<" + action.Name + `Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>r</requestId>`)
	if err := query.Encode(&b, message.Interface()); err != nil {
		t.Fatal(err)
	}
	b.WriteString("</" + action.Name + "Response>")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
		_, _ = w.Write(b.Bytes())
	}))
	defer server.Close()
	input := inputOf(action.Name)
	(&filler{}).fill("", input.Elem()) // the SDK refuses empty required members
	return invoke(t, client(server.URL, "AKIA", "secret", ""), action.Name, input), f.leaves
}

// The real SDK serialises requests with every one of its fields set; our decoder must
// find every parameter it supports and refuse every other.
func TestEverySupportedParameterIsSentByTheSDK(t *testing.T) {
	var golden bytes.Buffer
	for _, action := range table(t) {
		form := captured(t, action.Name)
		request := reflect.New(reflect.TypeOf(action.Request))
		claimed, refused := url.Values{}, []string{}
		for name, values := range form {
			probe := reflect.New(reflect.TypeOf(action.Request))
			err := query.Decode(url.Values{name: values}, probe.Interface())
			if isCode(err, "UnknownParameter") {
				refused = append(refused, name)
				continue
			}
			claimed[name] = values
		}
		if err := query.Decode(claimed, request.Interface()); err != nil {
			t.Errorf("%s: %v", action.Name, err)
		}
		for _, path := range empties("", request.Elem()) {
			t.Errorf("%s: the SDK sends no parameter %s", action.Name, path)
		}
		slices.Sort(refused)
		delete(claimed, "Action")
		delete(claimed, "Version")
		fmt.Fprintf(&golden, "%s\n  takes   %s\n  refuses %s\n", action.Name, strings.Join(keysOf(claimed), " "), strings.Join(refused, " "))
	}
	compareGolden(t, "requests.golden", golden.Bytes())
}

// captured returns the form that the SDK sends for an input with every field set.
func captured(t *testing.T, action string) url.Values {
	t.Helper()
	sent := make(chan url.Values, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		form, _ := url.ParseQuery(string(body))
		sent <- form
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	input := inputOf(action)
	f := &filler{}
	f.fill("", input.Elem())
	setBools(input.Elem())
	c := client(server.URL, "AKIA", "secret", "")
	_ = reflect.ValueOf(c).MethodByName(action).Call([]reflect.Value{reflect.ValueOf(context.Background()), input})
	select {
	case form := <-sent:
		return form
	default:
		t.Fatalf("%s: the SDK sent nothing", action)
		return nil
	}
}

func setBools(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			setBools(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			setBools(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				setBools(v.Field(i))
			}
		}
	case reflect.Bool:
		v.SetBool(true)
	default: // set by fill
	}
}

// empties lists the unset leaves of a request.
func empties(path string, v reflect.Value) []string {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return []string{path}
		}
		return empties(path, v.Elem())
	case reflect.Slice:
		if v.Len() == 0 {
			return []string{path}
		}
		return empties(path+".1", v.Index(0))
	case reflect.Struct:
		var out []string
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("q"), ",")
			out = append(out, empties(strings.Trim(path+"."+name, "."), v.Field(i))...)
		}
		return out
	default:
		if v.IsZero() {
			return []string{path}
		}
		return nil
	}
}

func keysOf(form url.Values) []string {
	var out []string
	for k := range form {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got), rewrite with -update and review:\n%s", path, diff)
	}
}

// call is invoke for calls that may fail.
func call(t *testing.T, c *awsec2.Client, action string, input reflect.Value) (any, error) {
	t.Helper()
	out := reflect.ValueOf(c).MethodByName(action).Call([]reflect.Value{reflect.ValueOf(t.Context()), input})
	err, _ := out[1].Interface().(error)
	return out[0].Interface(), err
}

// set assigns value if the type allows it.
func set(f reflect.Value, value any) {
	if v := reflect.ValueOf(value); v.Type().AssignableTo(f.Type()) {
		f.Set(v)
	}
}
