package query_test

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/faults"
	"github.com/trunkline/trunkline/sim/iam"
	"github.com/trunkline/trunkline/sim/query"
)

// service is a server with one anonymous action that echoes its parameter.
type service struct {
	url   string
	calls *faults.Log
}

type echo struct {
	Text string `q:"Text"`
}

func serve(t *testing.T) service {
	t.Helper()
	c, err := cloud.New(cloud.Spec{
		Region: "us-west-2", Account: "111122223333",
		VPC: cloud.VPCSpec{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}},
	}, cloud.Options{})
	if err != nil {
		t.Fatal(err)
	}
	calls := &faults.Log{}
	server := httptest.NewServer(query.New(query.Options{
		Cloud: c, IAM: iam.New("111122223333", 1, nil), Faults: faults.New(1, nil), Calls: calls, Region: "us-west-2",
	}, query.Service{Name: "test", Version: "1", Actions: []query.Action{
		query.Handle(query.Spec[echo, echo]{Name: "Echo", Anonymous: true, Do: func(_ *query.Call, r *echo) (*echo, error) { return r, nil }}),
		query.Handle(query.Spec[echo, echo]{Name: "Signed", Do: func(_ *query.Call, r *echo) (*echo, error) { return r, nil }}),
	}}))
	t.Cleanup(server.Close)
	return service{server.URL, calls}
}

const formType = "application/x-www-form-urlencoded; charset=utf-8"

func (s service) send(t *testing.T, method, target, contentType, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// refusal is EC2's error answer.
type refusal struct {
	Code    string `xml:"Errors>Error>Code"`
	Message string `xml:"Errors>Error>Message"`
}

func TestInvalidRequestsAreRefusedWithTheirErrorCode(t *testing.T) {
	s := serve(t)
	const good = "Action=Echo&Version=1&Text=hello"
	for name, test := range map[string]struct {
		method, target, contentType, body string
		status                            int
		want                              string
	}{
		"by PUT":                         {"PUT", "/?" + good, formType, "", 405, "InvalidRequest: The request method PUT is not supported; use GET or POST."},
		"by GET, malformed":              {"GET", "/?" + good + "&Text%zz=1", "", "", 400, `MalformedQueryString: The query string is malformed: invalid URL escape "%zz"`},
		"by GET, unsigned":               {"GET", "/?Action=Signed&Version=1", "", "", 403, "MissingAuthenticationToken: Request is missing Authentication Token"},
		"by GET, badly presigned":        {"GET", "/?Action=Signed&Version=1&X-Amz-Algorithm=none", "", "", 400, "IncompleteSignature: authorization header is malformed: algorithm is not AWS4-HMAC-SHA256"},
		"by DELETE":                      {"DELETE", "/", formType, good, 405, "InvalidRequest: The request method DELETE is not supported; use GET or POST."},
		"as JSON":                        {"POST", "/", "application/x-amz-json-1.1", `{"Action": "Echo"}`, 415, "InvalidRequest: The content type application/x-amz-json-1.1 is not supported; use application/x-www-form-urlencoded."},
		"of no type":                     {"POST", "/", "", good, 415, "InvalidRequest: The content type  is not supported; use application/x-www-form-urlencoded."},
		"of a malformed type":            {"POST", "/", ";;", good, 415, "InvalidRequest: The content type ;; is not supported; use application/x-www-form-urlencoded."},
		"empty":                          {"POST", "/", formType, "", 400, "MissingAction: The request is missing an action or a required parameter."},
		"too long":                       {"POST", "/", formType, good + strings.Repeat("x", 2<<20), 413, "RequestEntityTooLarge: The request is longer than 1048576 bytes."},
		"with a malformed form":          {"POST", "/", formType, good + "&Text%zz=1", 400, `MalformedQueryString: The query string is malformed: invalid URL escape "%zz"`},
		"with parameters in the address": {"POST", "/?Text=hidden", formType, good, 400, "InvalidRequest: Parameters in the address are not supported; send them in the body."},
		"of no version":                  {"POST", "/", formType, "Action=Echo", 400, "NoSuchVersion: The requested version () is not valid."},
		"of an unknown action":           {"POST", "/", formType, "Action=Explode&Version=1", 400, "InvalidAction: The action Explode is not valid for this web service."},
		"with two actions":               {"POST", "/", formType, good + "&Action=Signed", 400, "InvalidQueryParameter: The parameter Action is given more than once"},
		"with two versions":              {"POST", "/", formType, good + "&Version=2", 400, "InvalidQueryParameter: The parameter Version is given more than once"},
		"with a parameter twice":         {"POST", "/", formType, good + "&Text=again", 400, "InvalidQueryParameter: The parameter Text is given more than once"},
		"with a huge list index":         {"POST", "/", formType, good + "&Text.1000000=x", 400, "UnknownParameter: The parameter Text.1000000 is not recognized"},
		"with a deeply nested name":      {"POST", "/", formType, good + "&" + strings.Repeat("a.", 100000) + "a=x", 400, ""},
		"unsigned":                       {"POST", "/", formType, "Action=Signed&Version=1", 403, "MissingAuthenticationToken: Request is missing Authentication Token"},
	} {
		t.Run(name, func(t *testing.T) {
			status, answer := s.send(t, test.method, test.target, test.contentType, test.body)
			var got refusal
			if err := xml.Unmarshal([]byte(answer), &got); err != nil || status != test.status {
				t.Fatalf("%d %v: %.300s", status, err, answer)
			}
			if text := got.Code + ": " + got.Message; test.want != "" && text != test.want {
				t.Errorf("got  %s\nwant %s", text, test.want)
			}
		})
	}
	if status, answer := s.send(t, "GET", "/?"+good, "", ""); status != 200 || !strings.Contains(answer, "<Text>hello</Text>") {
		t.Errorf("a valid request by GET: %d %s", status, answer)
	}
	if status, answer := s.send(t, "POST", "/", formType, good); status != 200 || !strings.Contains(answer, "<Text>hello</Text>") {
		t.Errorf("a valid request afterwards: %d %s", status, answer)
	}
}

// For any text from a client the response is XML with that text, or with replacements
// for characters that XML does not allow.
func TestAnyTextIsEncodedInXML(t *testing.T) {
	s := serve(t)
	for text, want := range map[string]string{
		"naïve 変数 🜂": "naïve 変数 🜂", `<x y="&">]]>`: `<x y="&">]]>`, "nul\x00nul": "nul\ufffdnul", "not\xffutf8": "not\ufffdutf8", "a\nb\tc": "a\nb\tc",
	} {
		_, answer := s.send(t, "POST", "/", formType, url.Values{"Action": {"Echo"}, "Version": {"1"}, "Text": {text}}.Encode())
		var got struct{ Text string }
		if err := xml.Unmarshal([]byte(answer), &got); err != nil || got.Text != want {
			t.Errorf("%q came back as %q (%v): %s", text, got.Text, err, answer)
		}
	}
}

// Unknown actions and long values must not fill the server's memory.
func TestUnknownActionsAreCountedTogetherAndValuesClipped(t *testing.T) {
	s := serve(t)
	for _, name := range []string{"A1", "A2", "A3"} {
		s.send(t, "POST", "/", formType, "Action="+name+"&Version=1")
	}
	long := strings.Repeat("x", 100000)
	s.send(t, "POST", "/", formType, "Action=Echo&Version=1&Text="+long)
	if n := s.calls.Counts()[faults.Count{Service: "test", Code: "InvalidAction"}]; n != 3 || len(s.calls.Counts()) != 2 {
		t.Errorf("counts %v, want three of InvalidAction under no name", s.calls.Counts())
	}
	s.send(t, "POST", "/", formType, "Action=Echo&Version=1&"+many("p", 50000))
	records := s.calls.Since(0, "")
	if got := records[0].Message; got != "The action A1 is not valid for this web service." {
		t.Errorf("the log has %q", got)
	}
	if got := records[3].Params["Text"]; len(got) > 2000 || !strings.HasPrefix(got, "xxx") {
		t.Errorf("the log keeps %d bytes of a long value", len(got))
	}
	if got := len(records[4].Params); got > 2000 {
		t.Errorf("the log keeps %d parameters of one call", got)
	}
}

// many returns n parameters with different names.
func many(name string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "&%s%d=", name, i)
	}
	return b.String()[1:]
}
