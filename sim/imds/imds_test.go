package imds

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/feature/ec2/imds"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// account is a Source of fixed instances by address.
type account struct {
	instances   map[string]Instance
	credentials map[vpc.InstanceID]Credentials
}

func (a account) ByAddress(addr netip.Addr) (Instance, bool) {
	i, ok := a.instances[addr.String()]
	return i, ok
}

func (a account) Credentials(id vpc.InstanceID) (Credentials, bool) {
	c, ok := a.credentials[id]
	return c, ok
}

func newYear() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

func node() Instance {
	return Instance{
		ID: "i-0123456789abcdef0", Type: "m5.xlarge", Image: "ami-0abc", Account: "111122223333",
		Placement: Placement{Region: "us-west-2", Zone: "us-west-2a", ZoneID: "usw2-az1"}, Reservation: "r-0abc", Launched: newYear(),
		Hostname: "ip-10-0-1-5.us-west-2.compute.internal",
		Role:     Role{Name: "node", ProfileARN: "arn:aws:iam::111122223333:instance-profile/node", ProfileID: "AIPA0000"},
		Interfaces: []Interface{
			{
				ID: "eni-1", MAC: vpc.MAC{2, 0, 0, 0, 0, 1}, Owner: "111122223333",
				Hostname:     "ip-10-0-1-5.us-west-2.compute.internal",
				Groups:       []Group{{"sg-1", "nodes"}, {"sg-2", "cluster"}},
				IPv4:         []netip.Addr{netip.MustParseAddr("10.0.1.5"), netip.MustParseAddr("10.0.1.6")},
				IPv6:         []netip.Addr{netip.MustParseAddr("fd10::5")},
				IPv4Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.2.16/28")},
				Public:       map[netip.Addr]netip.Addr{netip.MustParseAddr("10.0.1.5"): netip.MustParseAddr("203.0.113.77")},
				PublicNames:  map[netip.Addr]string{netip.MustParseAddr("10.0.1.5"): "ec2-203-0-113-77.us-west-2.compute.amazonaws.com"},
				Subnet:       Subnet{"subnet-1", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/19"), netip.MustParsePrefix("fd10::/64")}},
				VPC:          VPC{"vpc-1", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("fd10::/56")}},
			},
			{ID: "eni-2", MAC: vpc.MAC{2, 0, 0, 0, 0, 2}, DeviceNumber: 1, IPv4: []netip.Addr{netip.MustParseAddr("10.0.1.9")}},
		},
	}
}

// service is a server with a clock that the test sets, called from the node.
type service struct {
	t      *testing.T
	server *Server
	from   string
	at     time.Time
	account
}

func newService(t *testing.T) *service {
	other := node()
	other.ID = "i-0other"
	s := &service{t: t, from: "10.0.1.5", at: newYear(), account: account{
		instances: map[string]Instance{"10.0.1.5": node(), "fd10::5": node(), "10.0.1.99": other},
		credentials: map[vpc.InstanceID]Credentials{node().ID: {
			AccessKeyID: "ASIAEXAMPLE", SecretAccessKey: "secret", Token: "session", Updated: newYear(), Expires: newYear().Add(6 * time.Hour),
		}},
	}}
	s.server = New(s, Config{Now: func() time.Time { return s.at }})
	return s
}

// change edits the calling instance.
func (s *service) change(edit func(*Instance)) {
	i := s.instances[s.from]
	edit(&i)
	s.instances[s.from] = i
}

// do sends one request; headers come in pairs.
func (s *service) do(method, path string, headers ...string) *http.Response {
	s.t.Helper()
	r := httptest.NewRequest(method, "http://169.254.169.254/", nil)
	r.URL.Path, r.URL.RawPath = path, ""
	r.RemoteAddr = net.JoinHostPort(s.from, "40000")
	for n := 0; n < len(headers); n += 2 {
		r.Header.Add(headers[n], headers[n+1])
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	return w.Result()
}

func (s *service) token() string {
	s.t.Helper()
	return body(s.t, s.do("PUT", "/latest/api/token", headerTokenTTL, "60"))
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEveryPathThatNodesRead(t *testing.T) {
	s := newService(t)
	token := s.token()
	const mac = "/latest/meta-data/network/interfaces/macs/02:00:00:00:00:01"
	for path, want := range map[string]string{
		"/latest":                                          "dynamic\nmeta-data",
		"/latest/":                                         "dynamic\nmeta-data",
		"/2021-07-15/meta-data/instance-id":                "i-0123456789abcdef0",
		"/latest/meta-data/instance-id":                    "i-0123456789abcdef0",
		"/latest/meta-data/instance-type":                  "m5.xlarge",
		"/latest/meta-data/ami-id":                         "ami-0abc",
		"/latest/meta-data/mac":                            "02:00:00:00:00:01",
		"/latest/meta-data/local-ipv4":                     "10.0.1.5",
		"/latest/meta-data/ipv6":                           "fd10::5",
		"/latest/meta-data/public-ipv4":                    "203.0.113.77",
		"/latest/meta-data/public-hostname":                "ec2-203-0-113-77.us-west-2.compute.amazonaws.com",
		"/latest/meta-data/hostname":                       "ip-10-0-1-5.us-west-2.compute.internal",
		"/latest/meta-data/local-hostname":                 "ip-10-0-1-5.us-west-2.compute.internal",
		"/latest/meta-data/security-groups":                "nodes\ncluster",
		"/latest/meta-data/services/domain":                "amazonaws.com",
		"/latest/meta-data/services/partition":             "aws",
		"/latest/meta-data/placement":                      "availability-zone\navailability-zone-id\nregion",
		"/latest/meta-data/placement/availability-zone":    "us-west-2a",
		"/latest/meta-data/placement/availability-zone-id": "usw2-az1",
		"/latest/meta-data/placement/region":               "us-west-2",
		"/latest/meta-data/network/interfaces/macs":        "02:00:00:00:00:01/\n02:00:00:00:00:02/",
		"/latest/meta-data/network/interfaces/macs/":       "02:00:00:00:00:01/\n02:00:00:00:00:02/",
		mac: "device-number\ninterface-id\nipv4-associations/\nipv4-prefix\nipv6s\nlocal-hostname\nlocal-ipv4s\nmac\nnetwork-card\n" +
			"owner-id\npublic-hostname\npublic-ipv4s\nsecurity-group-ids\nsecurity-groups\nsubnet-id\nsubnet-ipv4-cidr-block\nsubnet-ipv6-cidr-blocks\n" +
			"vpc-id\nvpc-ipv4-cidr-block\nvpc-ipv4-cidr-blocks\nvpc-ipv6-cidr-blocks",
		mac + "/interface-id":                         "eni-1",
		mac + "/device-number":                        "0",
		mac + "/network-card":                         "0",
		mac + "/subnet-id":                            "subnet-1",
		mac + "/vpc-id":                               "vpc-1",
		mac + "/owner-id":                             "111122223333",
		mac + "/security-group-ids":                   "sg-1\nsg-2",
		mac + "/security-groups":                      "nodes\ncluster",
		mac + "/local-ipv4s":                          "10.0.1.5\n10.0.1.6",
		mac + "/ipv6s":                                "fd10::5",
		mac + "/ipv4-prefix":                          "10.0.2.16/28",
		mac + "/subnet-ipv4-cidr-block":               "10.0.0.0/19",
		mac + "/subnet-ipv6-cidr-blocks":              "fd10::/64",
		mac + "/vpc-ipv4-cidr-block":                  "10.0.0.0/16",
		mac + "/vpc-ipv4-cidr-blocks":                 "10.0.0.0/16\n100.64.0.0/16",
		mac + "/vpc-ipv6-cidr-blocks":                 "fd10::/56",
		mac + "/public-ipv4s":                         "203.0.113.77",
		mac + "/public-hostname":                      "ec2-203-0-113-77.us-west-2.compute.amazonaws.com",
		mac + "/ipv4-associations/203.0.113.77":       "10.0.1.5",
		"/latest/meta-data/iam":                       "info\nsecurity-credentials/",
		"/latest/meta-data/iam/security-credentials/": "node",
		"/latest/dynamic/instance-identity":           "document\npkcs7\nrsa2048\nsignature",
		"/latest/meta-data/network/interfaces/macs/02:00:00:00:00:02/device-number": "1",
	} {
		r := s.do("GET", path, headerToken, token)
		if got := body(t, r); r.StatusCode != http.StatusOK || got != want {
			t.Errorf("GET %s: %d %q, want %q", path, r.StatusCode, got, want)
		}
	}
}

func TestMissingPathsAreNotFound(t *testing.T) {
	s := newService(t)
	s.change(func(i *Instance) { i.Role = Role{} })
	const macs = "/latest/meta-data/network/interfaces/macs/"
	for _, path := range []string{
		"/latest/meta-data/nothing", "/latest/meta-data/instance-id/", "/latest/meta-data/instance-id/x", "/older/meta-data",
		macs + "02:00:00:00:00:01/ipv6-prefix", macs + "02:00:00:00:00:02/ipv4-prefix", macs + "02:00:00:00:00:09",
		"/latest/meta-data/iam", "/latest/meta-data/iam/security-credentials/node", "/latest/user-data",
		"//latest/meta-data", "/latest//meta-data", "/latest/meta-data/../meta-data", "/latest/./meta-data", "/latest/meta-data/tags/instance", "",
	} {
		if r := s.do("GET", path); r.StatusCode != http.StatusNotFound {
			t.Errorf("GET %q: %d, want 404", path, r.StatusCode)
		}
	}
}

func TestTokensFollowTheRulesOfIMDSv2(t *testing.T) {
	for _, try := range []struct {
		name    string
		method  string
		path    string
		headers []string
		want    int
	}{
		{"the shortest life", "PUT", "/latest/api/token", []string{headerTokenTTL, "1"}, 200},
		{"the longest life", "PUT", "/latest/api/token", []string{headerTokenTTL, "21600"}, 200},
		{"no life", "PUT", "/latest/api/token", nil, 400},
		{"an empty life", "PUT", "/latest/api/token", []string{headerTokenTTL, "0"}, 400},
		{"too long a life", "PUT", "/latest/api/token", []string{headerTokenTTL, "21601"}, 400},
		{"a life that is not a number", "PUT", "/latest/api/token", []string{headerTokenTTL, "long"}, 400},
		{"through a proxy", "PUT", "/latest/api/token", []string{headerTokenTTL, "60", headerForwarded, "10.0.0.1"}, 403},
		{"through a proxy that hides it", "PUT", "/latest/api/token", []string{headerTokenTTL, "60", headerForwarded, ""}, 403},
		{"by GET", "GET", "/latest/api/token", []string{headerTokenTTL, "60"}, 405},
		{"a PUT elsewhere", "PUT", "/latest/meta-data/", nil, 405},
		{"a POST", "POST", "/latest/meta-data/", nil, 405},
		{"data without a token", "GET", "/latest/meta-data/mac", nil, 401},
		{"data with a made-up token", "GET", "/latest/meta-data/mac", []string{headerToken, "AQAAAA=="}, 401},
		{"data with an empty token", "GET", "/latest/meta-data/mac", []string{headerToken, ""}, 401},
		{"what does not exist, without a token", "GET", "/latest/nothing", nil, 401},
	} {
		t.Run(try.name, func(t *testing.T) {
			s := newService(t)
			s.change(func(i *Instance) { i.Options.TokensRequired = true })
			r := s.do(try.method, try.path, try.headers...)
			if r.StatusCode != try.want {
				t.Errorf("%s %s %v: %d, want %d", try.method, try.path, try.headers, r.StatusCode, try.want)
			}
			if text := body(t, r); try.want != 200 && !strings.Contains(text, "<title>"+strconv.Itoa(try.want)+" - ") {
				t.Errorf("the page does not contain %d: %s", try.want, text)
			}
		})
	}
}

func TestTokenExpiresAndIsBoundToItsInstance(t *testing.T) {
	s := newService(t)
	s.change(func(i *Instance) { i.Options.TokensRequired = true })
	token := s.token()
	get := func() int { return s.do("GET", "/latest/meta-data/mac", headerToken, token).StatusCode }
	if got := s.do("GET", "/latest/meta-data/mac", headerToken, token); got.StatusCode != 200 || got.Header.Get(headerTokenTTL) != "60" {
		t.Fatalf("a fresh token: %d, %v", got.StatusCode, got.Header)
	}
	s.at = s.at.Add(59 * time.Second)
	if got := get(); got != 200 {
		t.Errorf("a token in its last second: %d", got)
	}
	s.at = s.at.Add(time.Second)
	if got := get(); got != 401 {
		t.Errorf("a token after its life: %d, want 401", got)
	}
	s.at = newYear()
	s.from = "10.0.1.99"
	if got := get(); got != 401 {
		t.Errorf("another instance's token: %d, want 401", got)
	}
	s.from, s.server = "10.0.1.5", New(s, Config{Now: func() time.Time { return s.at }})
	if got := get(); got != 401 {
		t.Errorf("another server's token: %d, want 401", got)
	}
}

func TestIMDSv1IsServedIfTokensAreOptional(t *testing.T) {
	s := newService(t)
	if r := s.do("GET", "/latest/meta-data/mac"); r.StatusCode != 200 {
		t.Errorf("without a token: %d", r.StatusCode)
	}
	if r := s.do("GET", "/latest/meta-data/mac", headerToken, "wrong"); r.StatusCode != 401 {
		t.Errorf("with a wrong token: %d, want 401", r.StatusCode)
	}
	s.change(func(i *Instance) { i.Options.Disabled = true })
	if r := s.do("GET", "/latest/meta-data/mac"); r.StatusCode != 403 {
		t.Errorf("with the endpoint disabled: %d, want 403", r.StatusCode)
	}
	if r := s.do("PUT", "/latest/api/token", headerTokenTTL, "60"); r.StatusCode != 403 {
		t.Errorf("a token with the endpoint disabled: %d, want 403", r.StatusCode)
	}
	s.from = "10.9.9.9"
	if r := s.do("GET", "/latest/meta-data/mac"); r.StatusCode != 404 {
		t.Errorf("from no instance: %d, want 404", r.StatusCode)
	}
}

func TestIPv6EndpointAnswersOnlyIfEnabled(t *testing.T) {
	s := newService(t)
	s.from = "fd10::5"
	if r := s.do("PUT", "/latest/api/token", headerTokenTTL, "60"); r.StatusCode != 403 {
		t.Errorf("a token with IPv6 disabled: %d, want 403", r.StatusCode)
	}
	if r := s.do("GET", "/latest/meta-data/mac"); r.StatusCode != 403 {
		t.Errorf("data with IPv6 disabled: %d, want 403", r.StatusCode)
	}
	s.change(func(i *Instance) { i.Options.IPv6 = true })
	if r := s.do("GET", "/latest/meta-data/mac", headerToken, s.token()); r.StatusCode != 200 {
		t.Errorf("with IPv6 enabled: %d", r.StatusCode)
	}
}

func TestRoleCredentialsAreCurrent(t *testing.T) {
	s := newService(t)
	read := func() map[string]string {
		r := s.do("GET", "/latest/meta-data/iam/security-credentials/node")
		out := map[string]string{}
		if err := json.Unmarshal([]byte(body(t, r)), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got := read(); got["Code"] != "Success" || got["AccessKeyId"] != "ASIAEXAMPLE" || got["Expiration"] != "2026-01-01T06:00:00Z" || got["Type"] != "AWS-HMAC" {
		t.Errorf("credentials: %v", got)
	}
	s.credentials[node().ID] = Credentials{AccessKeyID: "ASIANEXT"}
	if got := read(); got["AccessKeyId"] != "ASIANEXT" {
		t.Errorf("credentials after their rotation: %v", got)
	}
	delete(s.credentials, node().ID)
	if r := s.do("GET", "/latest/meta-data/iam/security-credentials/node"); r.StatusCode != 404 {
		t.Errorf("credentials of a removed role: %d, want 404", r.StatusCode)
	}
}

func TestAWSSDKClientReadsMetadata(t *testing.T) {
	s := newService(t)
	local := node()
	local.Options.TokensRequired = true
	s.instances["127.0.0.1"] = local
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.server.Serve(ctx, l) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	client := sdk.New(sdk.Options{Endpoint: "http://" + l.Addr().String()})
	document, err := client.GetInstanceIdentityDocument(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if document.InstanceID != string(local.ID) || document.Region != "us-west-2" || document.AccountID != "111122223333" ||
		document.PrivateIP != "10.0.1.5" || !document.PendingTime.Equal(newYear()) || document.AvailabilityZone != "us-west-2a" {
		t.Errorf("identity document: %+v", document)
	}
	info, err := client.GetIAMInfo(ctx, nil)
	if err != nil || info.InstanceProfileArn != local.Role.ProfileARN {
		t.Errorf("role: %+v, %v", info, err)
	}
	region, err := client.GetRegion(ctx, nil)
	if err != nil || region.Region != "us-west-2" {
		t.Errorf("region: %+v, %v", region, err)
	}
	out, err := client.GetMetadata(ctx, &sdk.GetMetadataInput{Path: "network/interfaces/macs"})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Content.Close()
	listing, err := io.ReadAll(out.Content)
	if err != nil || string(listing) != "02:00:00:00:00:01/\n02:00:00:00:00:02/" {
		t.Errorf("listing: %q, %v", listing, err)
	}
}

// FuzzPath requests any path: the response is 200, 401 or 404, and a path with
// response 200 is below a version.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{"/", "/latest", "/latest/meta-data/", "/latest/api/token", "/latest/meta-data/network/interfaces/macs/02:00:00:00:00:01/mac", "/..", "//", "/latest/../latest"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		s := newService(t)
		r := s.do("GET", path)
		switch r.StatusCode {
		case 200:
			version, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
			if path != "/" && !isVersion(version) {
				t.Errorf("GET %q answered %q", path, body(t, r))
			}
		case 404, 405:
			if r.StatusCode == 405 && !isTokenPath(path) {
				t.Errorf("GET %q: 405", path)
			}
		default:
			t.Errorf("GET %q: %d", path, r.StatusCode)
		}
	})
}
