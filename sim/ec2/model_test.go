package ec2_test

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
	"github.com/trunkline/trunkline/sim/query"
)

// The SDK is generated from AWS's own model of EC2: its serializers have every
// parameter, its types every enum, and its comments every documented filter.

// service returns the API over the small world.
func service(t *testing.T) query.Service {
	t.Helper()
	c, err := cloud.New(seeded(), cloud.Options{Instant: true})
	if err != nil {
		t.Fatal(err)
	}
	return ec2.Service(c)
}

// Every parameter of a supported action in AWS's model is taken or stands in the list
// of refusals, never both.
func TestEveryParameterOfTheModelIsTakenOrRefusedWithAReason(t *testing.T) {
	s := service(t)
	used := map[query.Refusal]bool{}
	for _, action := range s.Actions {
		for name, values := range captured(t, action.Name) {
			if name == "Action" || name == "Version" {
				continue
			}
			request := reflect.New(reflect.TypeOf(action.Request))
			taken := !isCode(query.Decode(url.Values{name: values}, request.Interface()), "UnknownParameter")
			refusal, refused := refusalOf(s, action.Name, name)
			switch {
			case taken == refused:
				t.Errorf("%s: parameter %s: taken %v, in the list of refusals %v; want one of them", action.Name, name, taken, refused)
			case refused:
				used[refusal] = true
			}
		}
	}
	for _, r := range s.Refusals {
		if r.Parameter != "" && r.Value == "" && !used[r] {
			t.Errorf("%s: the list refuses parameter %s, which the model does not have", r.Action, r.Parameter)
		}
	}
}

// refusalOf returns the refusal of a parameter whatever its value.
func refusalOf(s query.Service, action, name string) (query.Refusal, bool) {
	template := regexp.MustCompile(`\.\d+`).ReplaceAllString(name, ".N")
	for _, r := range s.Refusals {
		below := strings.HasPrefix(template, r.Parameter+".")
		if r.Action == action && r.Parameter != "" && r.Value == "" && (template == r.Parameter || below) {
			return r, true
		}
	}
	return query.Refusal{}, false
}

// Every documented filter of a supported describe is taken or stands in the list of
// refusals, and the API has no filter that is not documented.
func TestEveryDocumentedFilterIsTakenOrRefusedWithAReason(t *testing.T) {
	s := service(t)
	a := start(t, seeded())
	claimed := ec2.ClaimedFilters(a.cloud.State())
	source := sdkSource(t)
	for _, action := range s.Actions {
		input := inputOf(action.Name)
		if !input.Elem().FieldByName("Filters").IsValid() {
			continue
		}
		documented := filtersIn(t, filepath.Join(source, "api_op_"+action.Name+".go"))
		if len(documented) == 0 {
			t.Errorf("%s: no documented filter found", action.Name)
		}
		for _, name := range documented {
			taken := slices.Contains(claimed[action.Name], name)
			refused := slices.ContainsFunc(s.Refusals, func(r query.Refusal) bool { return r.Action == action.Name && r.Filter == name })
			if taken == refused {
				t.Errorf("%s: filter %s: taken %v, in the list of refusals %v; want one of them", action.Name, name, taken, refused)
			}
		}
		for _, name := range claimed[action.Name] {
			if !slices.Contains(documented, name) && !slices.Contains(formerlyDocumented()[action.Name], name) {
				t.Errorf("%s: filter %s is not documented", action.Name, name)
			}
		}
		for _, r := range s.Refusals {
			if r.Action == action.Name && r.Filter != "" && !slices.Contains(documented, r.Filter) {
				t.Errorf("%s: the list refuses filter %s, which is not documented", r.Action, r.Filter)
			}
		}
	}
}

// formerlyDocumented are filters that the model of an older client, Debian's awscli
// 2.9, documents and the SDK's no longer does.
func formerlyDocumented() map[string][]string {
	return map[string][]string{"DescribeNetworkInterfaces": {"group-name"}}
}

// sdkSource returns the folder of the SDK's source, in the module cache.
func sdkSource(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/aws/aws-sdk-go-v2/service/ec2").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// Forms of a documented filter in a comment of the SDK: a list item, and another name
// in its text.
var (
	filterItem  = regexp.MustCompile(`^- ([a-z0-9][A-Za-z0-9.-]*)(?: - | -$|\b)`)
	filterAlias = regexp.MustCompile(`also use ([A-Za-z]+)(?: or ([A-Za-z]+))? as the filter names?`)
)

// filtersIn returns the filters, except tag filters, that the comment of the field
// Filters lists in one file of the SDK.
func filtersIn(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, _, found := strings.Cut(string(text), "\n\tFilters []types.Filter\n")
	if !found {
		t.Fatalf("%s: no field Filters", path)
	}
	comment := before[strings.LastIndex(before, "\n\n"):]
	var out []string
	var plain []string // the comment without its markers, to read names in its text
	for line := range strings.SplitSeq(comment, "\n") {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "//"))
		plain = append(plain, line)
		if m := filterItem.FindStringSubmatch(line); m != nil {
			out = append(out, m[1])
		}
	}
	for _, m := range filterAlias.FindAllStringSubmatch(strings.Join(plain, " "), -1) {
		out = append(out, m[1:]...)
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(name string) bool {
		return name == "" || name == "tag" || name == "tag-key"
	})
}

// The reader of comments must find what it is there for.
func TestFiltersAreReadFromEveryFormOfComment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api_op_DescribeThings.go")
	text := `package ec2

type DescribeThingsInput struct {

	// The filters.
	//
	//   - availability-zone - The zone. You can also use
	//   availabilityZone as the filter name.
	//
	//   - cidr-block - The block. You can also use cidr or cidrBlock as the filter names.
	//
	//   - ipv6.a-b - One.
	//
	//   - The ARN of nothing.
	//
	//   - tag : - A tag.
	//
	//   - tag-key - A key.
	Filters []types.Filter
}
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "[availability-zone availabilityZone cidr cidr-block cidrBlock ipv6.a-b]"
	if got := fmt.Sprint(filtersIn(t, path)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A request with a value of an enum in AWS's model is accepted, or refused with the
// list's reason.
func TestEveryEnumValueOfARequestIsTakenOrRefusedWithAReason(t *testing.T) {
	a := start(t, seeded())
	refusals := service(t).Refusals
	refusal := func(action, parameter, value string) string {
		for _, r := range refusals {
			if r.Action == action && r.Parameter == parameter && r.Value == value {
				return r.Reason
			}
		}
		return ""
	}
	check := func(action, parameter, value string, err error) {
		t.Helper()
		switch reason := refusal(action, parameter, value); {
		case reason == "" && err != nil:
			t.Errorf("%s: %s=%s: %v", action, parameter, value, err)
		case reason != "" && (!isCode(err, "UnsupportedOperation") || !strings.Contains(err.Error(), reason)):
			t.Errorf("%s: %s=%s: %v, want %q", action, parameter, value, err, reason)
		}
	}
	for _, kind := range types.NetworkInterfaceCreationType("").Values() {
		_, err := a.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a"), InterfaceType: kind})
		check("CreateNetworkInterface", "InterfaceType", string(kind), err)
	}
	eni := string(a.cloud.State().Primary(a.instance("node1").ID).ID)
	for _, name := range types.NetworkInterfaceAttribute("").Values() {
		_, err := a.DescribeNetworkInterfaceAttribute(t.Context(), &awsec2.DescribeNetworkInterfaceAttributeInput{NetworkInterfaceId: &eni, Attribute: name})
		check("DescribeNetworkInterfaceAttribute", "Attribute", string(name), err)
	}
}

// Every value of an enum in a response is one of AWS's model. The SDK decodes any text
// into its enums.
func TestEveryEnumValueOfAResponseIsInTheModel(t *testing.T) {
	a := start(t, seeded())
	furnish(t, a.cloud)
	enums := 0
	for _, action := range service(t).Actions {
		if !strings.HasPrefix(action.Name, "Describe") || strings.HasSuffix(action.Name, "Attribute") {
			continue
		}
		out, err := call(t, a.Client, action.Name, inputOf(action.Name))
		if err != nil {
			t.Errorf("%s: %v", action.Name, err)
			continue
		}
		walkEnums(reflect.ValueOf(out), action.Name, func(path, value string, allowed []string) {
			enums++
			if value == "available" && strings.HasSuffix(path, "InternetGateways.Attachments.State") {
				return // the reference documents this value, which the enum does not have
			}
			if !slices.Contains(allowed, value) {
				t.Errorf("%s is %q, want one of %v", path, value, allowed)
			}
		})
	}
	if enums < 200 {
		t.Errorf("%d values of enums found: the test would hold for little", enums)
	}
}

// walkEnums calls visit for every value of an enum in an SDK value that is not empty.
func walkEnums(v reflect.Value, path string, visit func(path, value string, allowed []string)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			walkEnums(v.Elem(), path, visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walkEnums(v.Index(i), path, visit)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "ResultMetadata" {
				walkEnums(v.Field(i), path+"."+f.Name, visit)
			}
		}
	case reflect.String:
		values := v.MethodByName("Values")
		if !values.IsValid() || v.String() == "" || v.Type() == reflect.TypeFor[types.InstanceType]() {
			return // instance types are data: lab.yaml may add its own
		}
		var allowed []string
		list := values.Call(nil)[0]
		for i := range list.Len() {
			allowed = append(allowed, list.Index(i).String())
		}
		visit(path, v.String(), allowed)
	default: // no enum
	}
}

// The error for a refused part names it and says why.
func TestRefusedPartsAreNamedWithTheirReason(t *testing.T) {
	a := start(t, seeded())
	_, err := a.CreateRoute(t.Context(), &awsec2.CreateRouteInput{
		RouteTableId: a.table(t).RouteTableId, DestinationCidrBlock: aws.String("192.0.2.0/24"), TransitGatewayId: aws.String("tgw-00000000000000000"),
	})
	want(t, err, "UnsupportedOperation", "The parameter TransitGatewayId is valid on AWS and not supported by the embedded service: "+
		"the targets of routes are the internet gateway, interfaces and instances.")
	_, err = a.DescribeInstances(t.Context(), &awsec2.DescribeInstancesInput{Filters: []types.Filter{filter("root-device-type", "ebs")}})
	want(t, err, "UnsupportedOperation", "The filter 'root-device-type' is valid on AWS and not supported by the embedded service: "+
		"the response does not show this attribute, which every instance has.")
	group := string(a.cloud.State().GroupNamed("node").ID)
	_, err = a.AuthorizeSecurityGroupIngress(t.Context(), &awsec2.AuthorizeSecurityGroupIngressInput{GroupId: &group, IpPermissions: []types.IpPermission{{
		IpProtocol: aws.String("-1"), UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: &group, VpcPeeringConnectionId: aws.String("pcx-1")}},
	}}})
	want(t, err, "UnsupportedOperation", "The parameter IpPermissions.1.Groups.1.VpcPeeringConnectionId is valid on AWS and not supported by the embedded service: "+
		"the account has one VPC and no peering connection.")
}
