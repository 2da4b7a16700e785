package ec2_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	signer "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	"pgregory.net/rapid"

	"github.com/trunkline/trunkline/sim/cloud"
	"github.com/trunkline/trunkline/sim/ec2"
)

// raw sends a signed form as it is and returns the status and the response.
func (a *account) raw(form url.Values) (int, []byte, error) {
	body := form.Encode()
	r, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, a.url, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	hash := sha256.Sum256([]byte(body))
	key := aws.Credentials{AccessKeyID: a.key.AccessKeyID, SecretAccessKey: a.key.SecretAccessKey}
	if err := signer.NewSigner().SignHTTP(a.t.Context(), key, r, hex.EncodeToString(hash[:]), "ec2", "us-west-2", time.Now()); err != nil {
		return 0, nil, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return resp.StatusCode, answer, err
}

// strange returns values for any parameter: valid ones of every kind among them.
func strange(s *cloud.State) []string {
	out := []string{
		"", "0", "1", "-1", "2", "17", "2147483647", "2147483648", "-9999999999", "1e3", "0x10", "true", "false", "TRUE", "perhaps",
		"10.0.0.9", "10.0.0.1", "10.0.31.255", "256.1.1.1", "::ffff:10.0.0.9", "fe80::1%eth0", "2600:1f14:abc:de00::9", "::",
		"10.0.0.0/16", "10.0.0.16/28", "10.0.0.1/28", "0.0.0.0/0", "::/0", "10.0.0.0/33", "2600:1f14:abc:de00:1::/80", "::ffff:10.0.0.0/124",
		"eni-", "eni-0", "eni-zzzzzzzzzzzzzzzzz", "eni-00000000000000000", "subnet-00000000000000000", "sg-00000000", "i-", "rtb-", "igw-", "local",
		"tcp", "-1", "icmpv6", "256", "network-interface", "trunk", "m5.xlarge", "attachment", "groupSet", "\x00", "\xff\xfe", "𝕏🜂", "*", "tag:", "tag-key",
		strings.Repeat("A", 70), "a\nb", "<x>", "aws:x",
	}
	for _, i := range cloud.Sorted(s.Interfaces) {
		out = append(out, string(i.ID), i.IPv4.Addresses[0].String())
		if i.Attachment != nil {
			out = append(out, string(i.Attachment.ID))
		}
	}
	for _, r := range s.Resources() {
		out = append(out, r.ID)
	}
	return out
}

// present returns the ids that still exist, by the parameter that accepts them.
func present(a *account) map[string][]string {
	s := a.cloud.State()
	var enis, attachments, associations []string
	for _, i := range cloud.Sorted(s.Interfaces) {
		enis = append(enis, string(i.ID))
		if i.Attachment != nil {
			attachments = append(attachments, string(i.Attachment.ID))
		}
		for _, p := range i.Public {
			if p.Association != "" {
				associations = append(associations, string(p.Association))
			}
		}
	}
	instances, subnets := idsOf(s.Instances), idsOf(s.Subnets)
	for _, n := range cloud.Sorted(s.Subnets) {
		if n.Association != "" {
			associations = append(associations, string(n.Association))
		}
	}
	out := map[string][]string{
		"NetworkInterfaceId": enis, "InstanceId": instances, "InstanceId.1": instances, "AttachmentId": attachments, "ResourceId.1": enis,
		"SubnetId": subnets, "GroupId": idsOf(s.Groups), "RouteTableId": idsOf(s.RouteTables), "DeviceIndex": {"1", "2", "-1", "99"},
		"VpcId": {string(s.VPC.ID)}, "AllocationId": idsOf(s.Addresses), "AssociationId": associations,
		"NetworkInterfacePermissionId": idsOf(s.Permissions),
	}
	for name, ids := range out {
		if len(ids) == 0 {
			delete(out, name)
		}
	}
	return out
}

// idsOf are the keys of a table of the account, in order.
func idsOf[ID ~string, T any](objects map[ID]T) []string {
	var out []string
	for id := range objects {
		out = append(out, string(id))
	}
	slices.Sort(out)
	return out
}

// With any value of any parameter of any action, the response is XML and never an
// internal error.
func TestNoParameterValueCausesAnInternalError(t *testing.T) {
	parameters := map[string][]string{}
	for _, action := range table(t) {
		parameters[action.Name] = keysOf(captured(t, action.Name))
	}
	names := keysOf(parameters)
	rapid.Check(t, func(rt *rapid.T) {
		a := start(t, seeded())
		furnish(t, a.cloud)
		for range 40 {
			action := rapid.SampledFrom(names).Draw(rt, "action")
			form := url.Values{}
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(parameters[action]), 0, 6, rapid.ID).Draw(rt, "parameters") {
				form.Set(name, rapid.SampledFrom(strange(a.cloud.State())).Draw(rt, "value"))
			}
			// Half of the calls name existing resources, to get past the id checks.
			if rapid.Bool().Draw(rt, "named") {
				for name, right := range present(a) {
					if slices.Contains(parameters[action], name) {
						form.Set(name, rapid.SampledFrom(right).Draw(rt, name))
					}
				}
			}
			form.Set("Action", action)
			form.Set("Version", ec2.Version)
			form.Del("DryRun")
			status, answer, err := a.raw(form)
			if err != nil || status >= 500 {
				rt.Fatalf("%v: %d %v %s", form, status, err, answer)
			}
			if err := xml.Unmarshal(answer, new(struct{ XMLName xml.Name })); err != nil {
				rt.Fatalf("%v: %v in %s", form, err, answer)
			}
		}
	})
}

// Of concurrent callers with the same index, address, token or rule exactly one
// succeeds, and the others get EC2's errors.
func TestOfConflictingCallsOneSucceeds(t *testing.T) {
	a := start(t, seeded())
	n, group := a.instance("node1"), string(a.cloud.State().GroupNamed("node").ID)
	const callers = 8
	race := func(call func(k int) (string, error)) (succeeded []string, codes map[string]int) {
		var mu sync.Mutex // guards succeeded and codes
		var all sync.WaitGroup
		codes = map[string]int{}
		for k := range callers {
			all.Go(func() {
				text, err := call(k)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					succeeded = append(succeeded, text)
					return
				}
				for _, code := range []string{"InvalidParameterValue", "InvalidPermission.Duplicate", "IdempotentParameterMismatch"} {
					if isCode(err, code) {
						codes[code]++
						return
					}
				}
				t.Error(err)
			})
		}
		all.Wait()
		return succeeded, codes
	}
	var enis []*string
	for range callers {
		enis = append(enis, a.create(t, &awsec2.CreateNetworkInterfaceInput{SubnetId: a.subnet("a")}).NetworkInterfaceId)
	}
	succeeded, failed := race(func(k int) (string, error) {
		_, err := a.AttachNetworkInterface(t.Context(), &awsec2.AttachNetworkInterfaceInput{
			NetworkInterfaceId: enis[k], InstanceId: aws.String(string(n.ID)), DeviceIndex: aws.Int32(1),
		})
		return "", err
	})
	if len(succeeded) != 1 || failed["InvalidParameterValue"] != callers-1 {
		t.Errorf("one device index: %d attached, %v", len(succeeded), failed)
	}
	succeeded, failed = race(func(k int) (string, error) {
		_, err := a.AssignPrivateIpAddresses(t.Context(), &awsec2.AssignPrivateIpAddressesInput{
			NetworkInterfaceId: enis[k], PrivateIpAddresses: []string{"10.0.7.7"},
		})
		return "", err
	})
	if len(succeeded) != 1 || failed["InvalidParameterValue"] != callers-1 {
		t.Errorf("one address: %d have it, %v", len(succeeded), failed)
	}
	succeeded, failed = race(func(int) (string, error) {
		_, _, err := a.authorized(group)
		return "", err
	})
	if len(succeeded) != 1 || failed["InvalidPermission.Duplicate"] != callers-1 {
		t.Errorf("one rule: %d made it, %v", len(succeeded), failed)
	}
	before := len(a.cloud.State().Interfaces)
	succeeded, failed = race(func(k int) (string, error) {
		out, err := a.CreateNetworkInterface(t.Context(), &awsec2.CreateNetworkInterfaceInput{
			SubnetId: a.subnet("a"), ClientToken: aws.String("contended"), Description: aws.String(fmt.Sprint(k % 2)),
		})
		if err != nil {
			return "", err
		}
		return *out.NetworkInterface.NetworkInterfaceId, nil
	})
	slices.Sort(succeeded)
	if made := len(a.cloud.State().Interfaces) - before; made != 1 || len(succeeded) != callers/2 || len(slices.Compact(succeeded)) != 1 || failed["IdempotentParameterMismatch"] != callers/2 {
		t.Errorf("one token, two descriptions: %d made, answers %v, %v", made, succeeded, failed)
	}
}

// authorized adds one rule to a group, raw.
func (a *account) authorized(group string) (int, []byte, error) {
	status, answer, err := a.raw(url.Values{
		"Action": {"AuthorizeSecurityGroupIngress"}, "Version": {ec2.Version}, "GroupId": {group},
		"IpPermissions.1.IpProtocol": {"tcp"}, "IpPermissions.1.FromPort": {"81"}, "IpPermissions.1.ToPort": {"81"},
		"IpPermissions.1.IpRanges.1.CidrIp": {"192.0.2.0/24"},
	})
	if err == nil && status != http.StatusOK {
		code, _, _ := bytes.Cut(answer[bytes.Index(answer, []byte("<Code>"))+len("<Code>"):], []byte("<"))
		err = cloud.Errorf(string(code), "%s", answer)
	}
	return status, answer, err
}
